"""Units, and the one kind of error a reader of this package's messages meets.

Inside the package memory is in bytes and lengths are in tokens; GiB (2**30 bytes) appears only
where a person reads or writes. vLLM prints GiB everywhere, also where an old line says "GB".
"""

import math
import re

import numpy as np
from uncertainties import UFloat, ufloat

MIB, GIB = 2**20, 2**30
LARGEST_COUNT = 10**15  # tokens or requests; whole numbers stay exact as floats
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kmgtKMGT]?)\Z", re.ASCII)
_SUFFIX = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


class InputError(ValueError):
    """What is wrong with an input, where, and what would be right: one line for a person."""

    def _render_traceback_(self) -> list[str]:
        """A notebook shows the line alone."""
        return [str(self)]


def parse_size(text: str) -> int:
    """Tokens or requests as vLLM's command line reads them: ``80K`` = 81,920, ``80k`` = 80,000.

    Upper-case suffixes are powers of 1024 and take whole numbers only; lower-case ones are powers
    of 1000 and may carry a fraction (``1.5k``). Raises ValueError with what would be right.

    >>> parse_size("80K"), parse_size("80k"), parse_size("8192")
    (81920, 80000, 8192)
    """
    match = _SIZE.match(text.strip().replace(",", ""))
    if not match:
        raise ValueError(f"{text.strip()!r} is not a count; write 8192, 8k (8,000) or 8K (8,192)")
    number, suffix = match.groups()
    if "." in number and suffix not in ("k", "m", "g", "t"):
        raise ValueError(f"{text.strip()!r} is not a whole number; only k, m, g, t take a fraction")
    value = float(number) * _SUFFIX[suffix] if "." in number else int(number) * _SUFFIX[suffix]
    if value != int(value):
        raise ValueError(f"{text.strip()!r} is not a whole number")
    if value > LARGEST_COUNT:
        raise ValueError(f"{text.strip()} is out of range; it must be at most {LARGEST_COUNT:,}")
    return int(value)


def printed_half_widths(values) -> np.ndarray:
    """Half the width of the last printed digit of each GiB figure of a column, in bytes.

    The width is that of the column's most precise figure, because vLLM drops trailing zeros
    (3.6 beside 2.85 is +- 0.005); vLLM prints 0.01 GiB or finer. Exact bytes divided by 2**30 carry
    so many digits that half a byte is left. Beside figures of more digits than vLLM prints, those
    of two are printed ones, with a width of their own.

    values: GiB figures in bytes (a GiB figure times 2**30 is exact, so its digits survive), NaN
    where there is none; the result has their shape.

    >>> printed_half_widths([3.6 * GIB, 2.85 * GIB]) / GIB
    array([0.005, 0.005])
    >>> printed_half_widths([12571137.0, 2.85 * GIB]) / [1, GIB]
    array([0.5  , 0.005])
    """
    values = np.asarray(values, dtype=float)
    gib, known = values / GIB, np.isfinite(values)
    digits = np.full(values.shape, 11)
    for count in range(10, 1, -1):
        digits[np.rint(gib * 10.0**count) / 10.0**count == gib] = count
    if (known & (digits > 4)).any():  # more than vLLM prints
        digits[digits > 2] = digits[known].max()
    elif known.any():
        digits[:] = digits[known].max()
    half = np.where(digits > 10, 0.5, 0.5 * 10.0**-digits * GIB)
    return np.where(known, half, np.nan)


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


def with_error(value, digits: int = 0) -> str:
    """``310.3 +- 0.2``: the digits that the standard error leaves meaningful; ``?`` if unknown."""
    if value is None or not is_known(value):
        return "?"
    if value.s > 0:
        digits = max(0, min(digits + 4, 1 - math.floor(math.log10(value.s))))
        error = f"{value.s:,.{digits}f}"
        return f"{value.n:,.{digits}f} +- {error if error.strip('0.') else '<' + error[:-1] + '1'}"
    return f"{value.n:,.{digits}f}"
