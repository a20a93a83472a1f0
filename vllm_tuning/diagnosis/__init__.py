"""Sentences: what contradicts what, what is not known and which launch would tell."""

from .contradictions import check_launches, kv_per_token_intervals, refuse_falling_peaks
from .explanations import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, notices
from .missing import (
    GROUP_1,
    GROUP_2,
    NextLaunch,
    missing_reasons,
    next_launches,
    poor_fit,
    repeats_differ,
    within_rounding,
)

__all__ = [
    "ABOUT_A_FIGURE",
    "ABOUT_THE_ANSWER",
    "GROUP_1",
    "GROUP_2",
    "NextLaunch",
    "check_launches",
    "kv_per_token_intervals",
    "missing_reasons",
    "next_launches",
    "notices",
    "poor_fit",
    "refuse_falling_peaks",
    "repeats_differ",
    "within_rounding",
]
