"""The server under load: its /metrics against the prediction, and benchmarks around the answer."""
