"""What the requests look like: input and output length, and what one keeps of the pool."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

from uncertainties import UFloat

from .units import InputError


@dataclass(frozen=True)
class Workload:
    """Requests of ``input_len`` prompt tokens and ``output_len`` generated ones."""

    input_len: int
    output_len: int

    def __post_init__(self):
        for name in ("input_len", "output_len"):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise InputError(f"{name} is {value!r}; it must be a whole number of tokens")
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1 token")

    @property
    def length(self) -> int:
        """L = input + output, tokens of one finished request."""
        return self.input_len + self.output_len

    @property
    def output_share(self) -> float:
        """o / (i + o - 1): of the tokens that a request is scheduled for, those it puts out."""
        return self.output_len / (self.length - 1)

    def blocks(self, block_size: int) -> int:
        """Whole KV blocks of one finished request: ceil(L / block_size)."""
        return -(-self.length // block_size)


class RequestCost(Protocol):
    """What a request keeps of the pool where that is not its length times the bytes of a token.

    The pool is counted in blocks of ``block_bytes``; vLLM keeps ``reserved`` of them back.
    """

    @property
    def block_bytes(self) -> float: ...

    @property
    def reserved(self) -> int: ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """The max_model_len of the launches that it stands on; () is any."""

    @property
    def source(self) -> str:
        """config or launches."""

    @property
    def terms(self) -> dict[str, UFloat]:
        """The bytes of each of its terms by name."""

    @property
    def in_words(self) -> list[tuple[UFloat, str]]:
        """Each term with what it is for."""

    def bytes_of(self, length: int, budget: int) -> UFloat | None:
        """Bytes of one request of ``length`` tokens beside a budget of B; None if not known."""


def largest(fits, most: float = math.inf, near: int = 0) -> int:
    """The largest count for which ``fits(count)`` holds, 0 if none; it holds for all below one.

    The search begins at ``near``, a guess, with steps that double, and stops beyond ``most``.
    """
    low, high, step = near, near + 1, 1
    if near and not fits(near):
        high = near
        while (low := max(0, high - step)) and not fits(low):
            high, step = low, 2 * step
    else:
        while high <= most and fits(high):
            step *= 2
            low, high = high, high + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def at_percentile(workloads: list[Workload], percent: float = 95) -> Workload:
    """The request whose length ``percent`` % of them do not exceed (nearest rank).

    >>> at_percentile([Workload(10, n) for n in range(1, 21)])
    Workload(input_len=10, output_len=19)
    """
    ordered = sorted(workloads, key=lambda workload: workload.length)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]
