"""The V1 scheduler step by step: its rules, simulations, traces, step times."""
