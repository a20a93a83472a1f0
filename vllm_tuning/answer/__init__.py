"""From named sources to one answer: read, check, fit, solve, diagnose."""

from .answer import Answer, Asked, Fit, find_optimum, fit_memory_model
from .models import by_model, config_beside, model_of

__all__ = [
    "Answer",
    "Asked",
    "Fit",
    "by_model",
    "config_beside",
    "find_optimum",
    "fit_memory_model",
    "model_of",
]
