"""A server under load: scrapes over time, rules, advice."""

from .advice import PEAK_LIMIT, longest_length, observed_request
from .baseline import compare, read_baseline
from .rules import Rule, Verdict, check
from .sampling import is_url, sample, samples
from .sweep_file import write_sweep

__all__ = [
    "PEAK_LIMIT",
    "Rule",
    "Verdict",
    "check",
    "compare",
    "is_url",
    "longest_length",
    "observed_request",
    "read_baseline",
    "sample",
    "samples",
    "write_sweep",
]
