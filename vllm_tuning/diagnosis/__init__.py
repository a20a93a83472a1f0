"""Sentences: what contradicts what, what is not known and which launch would identify it."""

from .contradictions import check_launches, cold_start_takes, of_one_kind, refuse_falling_peaks
from .explanations import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, Notice, notices
from .missing import missing_reasons, no_estimate, no_recommendation, not_used, tokens_alone
from .planner import NextLaunch, four_launches, next_launches
from .scope import about_the_answer, about_the_model, starts_cold_first

__all__ = [
    "ABOUT_A_FIGURE",
    "ABOUT_THE_ANSWER",
    "NextLaunch",
    "Notice",
    "about_the_answer",
    "about_the_model",
    "check_launches",
    "cold_start_takes",
    "four_launches",
    "missing_reasons",
    "next_launches",
    "no_estimate",
    "no_recommendation",
    "not_used",
    "notices",
    "of_one_kind",
    "refuse_falling_peaks",
    "starts_cold_first",
    "tokens_alone",
]
