"""Sentences: what contradicts what, what is not known and which launch would identify it."""

from .contradictions import check_launches, refuse_falling_peaks
from .explanations import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, Notice, notices
from .missing import (
    GROUP_1,
    GROUP_2,
    NextLaunch,
    missing_reasons,
    next_launches,
    no_estimate,
    no_recommendation,
    not_used,
    tokens_alone,
)
from .scope import about_the_answer, about_the_model

__all__ = [
    "ABOUT_A_FIGURE",
    "ABOUT_THE_ANSWER",
    "GROUP_1",
    "GROUP_2",
    "NextLaunch",
    "Notice",
    "about_the_answer",
    "about_the_model",
    "check_launches",
    "missing_reasons",
    "next_launches",
    "no_estimate",
    "no_recommendation",
    "not_used",
    "notices",
    "refuse_falling_peaks",
    "tokens_alone",
]
