"""Plan the launches, make them, verify the answer with one more."""

from .campaign import Measured, measured
from .driver import check_command, interruptible
from .plan import next_launch, plan_launches
from .verify import verified

__all__ = [
    "Measured",
    "check_command",
    "interruptible",
    "measured",
    "next_launch",
    "plan_launches",
    "verified",
]
