"""How many requests to let in: from a high percentile of their length, or from a stated risk."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..kv_cache import CacheLayout
from ..units import InputError

MARGIN = 0.85  # of pool / p95: 449k / 2,400 = 187, so about 160
LONGEST = 2**24  # tokens of a request


def seqs_by_length(
    cache: CacheLayout, blocks: int, length: int, budget: int, margin: float = MARGIN
) -> int:
    """mns = pool / length * margin, in whole blocks, one block kept back; ``length`` the 95th
    percentile of finished requests, or that of all with a margin of 1."""
    return math.floor(max(0, blocks - 1) / cache.held_blocks(length, budget) * margin)


@dataclass(frozen=True)
class Risk:
    """mns for a stated risk, and the risk at it."""

    max_num_seqs: int
    probability: float


class RunningRequest:
    """Blocks of a running request: ``mean``, standard deviation ``spread``, and ``most``.

    Assumption: each step of each request's generation is as likely to be met as any other, so a
    request with a long output is met more often, and at an age that is uniform over its output; all
    running requests are independent. Mean and variance are exact; the sum over many requests is
    taken to be normal (central limit theorem). Drawn with 30 requests and more of long-tailed
    lengths, at most 1.5 % overflowed where 1 % was asked for.
    """

    def __init__(self, cache: CacheLayout, inputs, outputs, budget: int):
        inputs, outputs = (np.asarray(each, dtype=int) for each in (inputs, outputs))
        if not len(inputs) or inputs.min() < 0 or outputs.min() < 1:
            raise InputError("lengths: needs requests with an output of 1 token or more")
        if (inputs + outputs).max() > LONGEST:
            raise InputError(
                f"lengths: a request of {(inputs + outputs).max():,} tokens; expected "
                f"at most {LONGEST:,}"
            )
        changes = np.zeros((inputs + outputs).max() + 2, dtype=int)
        np.add.at(changes, inputs + 1, 1)
        np.add.at(changes, inputs + outputs + 1, -1)
        steps = np.cumsum(changes)  # how many steps are met at each length
        lengths = np.flatnonzero(steps)
        blocks = cache.held_blocks(lengths, budget)
        self.mean = float(np.average(blocks, weights=steps[lengths]))
        variance = np.average((blocks - self.mean) ** 2, weights=steps[lengths])
        self.spread, self.most = math.sqrt(variance), int(blocks.max())

    def overflow(self, seqs: int, blocks: int) -> float:
        """P(``seqs`` requests take more than ``blocks``), for a sum of whole numbers."""
        if seqs * self.most <= blocks:
            return 0.0
        room = blocks + 0.5 - seqs * self.mean
        if not self.spread:
            return float(room < 0)
        return NormalDist().cdf(-room / (math.sqrt(seqs) * self.spread))

    def seqs_at(self, risk: float, blocks: int) -> int:
        """The largest count that takes more than ``blocks`` with at most this risk.

        n*mean + z*sqrt(n)*spread = blocks + 1/2, solved for n; at least what fits for sure.
        """
        half = NormalDist().inv_cdf(1 - risk) * self.spread / (2 * self.mean)
        root = math.sqrt(half**2 + (blocks + 0.5) / self.mean) - half
        return max(math.floor(root**2), blocks // self.most)


def seqs_for_risk(request: RunningRequest, blocks: int, risk: float) -> Risk:
    """The largest mns at which so many running requests outgrow the pool with at most this risk.

    risk: probability at a moment, up to a half; ``blocks`` as printed, one of them is kept back.
    """
    if not 0 < risk <= 0.5:
        raise InputError(f"risk is {risk:g}; expected a probability above 0, at most 0.5")
    usable = max(0, blocks - 1)
    seqs = request.seqs_at(risk, usable)
    return Risk(seqs, request.overflow(seqs, usable))
