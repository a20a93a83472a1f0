"""Numbers that carry their standard error: exact ones, unknown ones, and how to take them apart."""

import math

from uncertainties import UFloat, ufloat

NORMAL_95 = (
    1.6448536269514722  # quantile of the normal distribution: one-sided 95 %, two-sided 90 %
)
UNKNOWN = ufloat(math.nan, math.nan)
_ZERO = 0 * ufloat(1, 1)


def exact(value: float) -> UFloat:
    """A number without error, to be mixed with numbers that have one."""
    return value + _ZERO


def is_known(value: UFloat) -> bool:
    return math.isfinite(value.n)


def nominal(value: UFloat) -> float | None:
    return value.n if math.isfinite(value.n) else None


def stderr(value: UFloat) -> float | None:
    return value.s if math.isfinite(value.n) and math.isfinite(value.s) else None
