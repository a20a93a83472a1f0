"""Plan the launches, make them, verify the answer with one more."""

from .campaign import Measured, measured
from .driver import check_command, interruptible
from .missing import missing_for
from .plan import plan_launches
from .verify import verified

__all__ = [
    "Measured",
    "check_command",
    "interruptible",
    "measured",
    "missing_for",
    "plan_launches",
    "verified",
]
