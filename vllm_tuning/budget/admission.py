"""How many requests to let in: from a high percentile of their length, or from a stated risk."""

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..kv_cache import CacheLayout
from ..units import InputError
from ..workload import largest

MARGIN = 0.85  # of pool / p95: 449k / 2,400 = 187, so about 160


_LARGEST = 2**21  # blocks in the distribution of a sum; beyond it blocks are counted in bundles


_MOST = 2**14  # requests at once


_LONGEST = 2**24  # tokens of a request


def seqs_by_length(
    cache: CacheLayout, blocks: int, length: int, budget: int, margin: float = MARGIN
) -> int:
    """mns = pool / length * margin, in whole blocks, one block kept back; ``length`` the 95th
    percentile of finished requests, or that of all with a margin of 1."""
    return math.floor(max(0, blocks - 1) / cache.request_blocks(length, budget) * margin)


@dataclass(frozen=True)
class Risk:
    """mns for a stated risk, and the risk at it."""

    max_num_seqs: int
    probability: float


class RunningRequest:
    """Blocks of a running request, as a distribution.

    Assumption: each step of each request's generation is as likely to be met as any other, so a
    request with a long output is met more often, and at an age that is uniform over its output; all
    running requests are independent.
    """

    def __init__(self, cache: CacheLayout, inputs, outputs, budget: int):
        inputs, outputs = (np.asarray(each, dtype=int) for each in (inputs, outputs))
        if not len(inputs) or inputs.min() < 0 or outputs.min() < 1:
            raise InputError("lengths: needs requests with an output of 1 token or more")
        if (inputs + outputs).max() > _LONGEST:
            raise InputError(
                f"lengths: a request of {(inputs + outputs).max():,} tokens; expected "
                f"at most {_LONGEST:,}"
            )
        steps = np.zeros((inputs + outputs).max() + 2)
        np.add.at(steps, inputs + 1, 1)
        np.add.at(steps, inputs + outputs + 1, -1)
        steps = np.cumsum(steps)
        lengths = np.flatnonzero(steps > 0.5)
        blocks = cache.request_blocks(lengths, budget)
        self.weights = np.bincount(blocks, steps[lengths]) / steps[lengths].sum()

    @property
    def mean(self) -> float:
        return float(self.weights @ np.arange(len(self.weights)))

    def near(self, blocks: int, risk: float) -> int:
        """About the count that outgrows so many blocks with this risk: mean + z sd = blocks."""
        spread = math.sqrt(
            max(0.0, self.weights @ np.arange(len(self.weights)) ** 2 - self.mean**2)
        )
        half = NormalDist().inv_cdf(1 - risk) * spread / (2 * self.mean)
        root = math.sqrt(half**2 + max(0, blocks) / self.mean) - half
        return min(_MOST, int(root**2))

    def overflow(self, seqs: int, blocks: int) -> float:
        """P(``seqs`` requests take more than ``blocks``), exact to about 1e-12.

        The distribution of a sum is the power of the transform of one; where it is longer than two
        million blocks, blocks are counted in bundles, each request rounded up (never too low).
        """
        if seqs * (len(self.weights) - 1) <= blocks:
            return 0.0
        bundle = max(1, -(-seqs * len(self.weights) // _LARGEST))
        one = np.bincount(-(-np.arange(len(self.weights)) // bundle), self.weights)
        size = 1 << (seqs * (len(one) - 1)).bit_length()
        total = np.fft.irfft(np.fft.rfft(one, size) ** seqs, size)
        return float(np.clip(1 - total[: blocks // bundle + 1].sum(), 0.0, 1.0))


def seqs_for_risk(request: RunningRequest, blocks: int, risk: float) -> Risk:
    """The largest mns at which so many running requests outgrow the pool with at most this risk.

    risk: probability at a moment, above 1e-9; ``blocks`` as printed, one of them is kept back.
    """
    if not 1e-9 <= risk < 1:
        raise InputError(f"risk is {risk:g}; expected a probability from 1e-9 to 1")
    overflow = functools.cache(lambda seqs: request.overflow(seqs, blocks - 1))
    seqs = largest(lambda count: overflow(count) <= risk, _MOST, request.near(blocks - 1, risk))
    return Risk(seqs, overflow(seqs) if seqs else 0.0)
