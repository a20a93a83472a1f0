"""The pool at integer flags and the full requests that it holds, with 95 % confidence."""

import math

import numpy as np
from uncertainties import covariance_matrix

from .memory_model import MemoryModel
from .readings import ROOT3
from .units import NORMAL_95, exact
from .workload import Workload, largest

CONFIDENCE = 0.95
LARGEST_ASSUMED_K = 16384  # bytes: 8,192 bf16 elements, the hidden size of a 70B model


class Pool:
    """The pool at integer flags, less what full requests need: linear in the model's parameters.

    In tokens where a request costs its whole blocks of them, else in bytes; ``unit`` is a block.
    """

    def __init__(self, model: MemoryModel, workload: Workload, least_budget: int):
        self.model, self.workload, self.least_budget = model, workload, least_budget
        self.quantile = one_sided_quantile(model)
        size, cost = model.kv_per_token, model.request_cost
        self.unit: float = model.block_size
        self.reserved = 1
        if cost:
            size, self.unit, self.reserved = exact(1), cost.block_bytes, cost.reserved
        self.bytes = size.n
        at_zero_tokens, at_zero_requests = model.pools_at_zero
        parameters = (at_zero_tokens, model.k1, at_zero_requests, model.k2, model.k)
        in_units = [value / size for value in parameters]
        self.values = np.array([value.n for value in in_units])
        self.covariance = np.array(covariance_matrix(in_units))
        most, self.k_known_at = open_k(model)
        self.k_room = most / size.n

    def largest_free_token_budget(self, seqs: int) -> int:
        """The largest B that is free of charge beside C = seqs, but no less than vLLM allows."""
        at_zero_tokens, k1, at_zero_requests, k2, k = self.values
        gap = at_zero_requests - at_zero_tokens
        return max(seqs, self.least_budget, math.floor((k2 * seqs - gap) / (k1 - k)))

    def left(self, seqs: int, budget: int, requests: int = 0, quantile: float = 0.0) -> float:
        """What ``requests`` full ones leave of the pool at (C, B), less so many standard errors."""
        return min(self._branches(seqs, budget, requests, quantile))[0]

    def stderr(self, seqs: int, budget: int) -> float:
        """Of the printed pool: fit, assumed k, and the floor to a block on both sides."""
        return math.hypot(
            min(self._branches(seqs, budget))[1],
            self.unit / math.sqrt(6),
            self._room(budget) / ROOT3,
        )

    def concurrency(self, seqs: int, budget: int) -> float:
        """Full requests that the pool at (C, B) holds, as vLLM counts them."""
        whole = math.floor(self.left(seqs, budget) / self.unit) * self.unit * self.bytes
        return whole / self.request_bytes(budget)

    def request_bytes(self, budget: int) -> float:
        """Bytes of a full request in whole blocks, beside a budget of B."""
        return self.bytes * self._request(budget)[0]

    def whole_tokens(self, seqs: int, budget: int) -> int | None:
        """KV cache tokens that vLLM will print; None where their number depends on more."""
        if self.model.hybrid:
            return None
        block = self.model.block_size
        return math.floor(self.left(seqs, budget) / block) * block

    def fits(self, seqs: int, budget: int) -> bool:
        """seqs full requests and the reserved block fit with 95 % confidence, in either branch."""
        return math.floor(self.left(seqs, budget, seqs, self.quantile) / self.unit) >= self.reserved

    def most_requests(self, budget_of) -> int:
        """The largest C that fits beside the budget ``budget_of(C)``; 0 if none does."""
        return largest(lambda seqs: self.fits(seqs, budget_of(seqs)))

    def _room(self, budget: int) -> float:
        """What hidden states would take at ``budget`` where k is only assumed to be 0."""
        return self.k_room * max(0, budget - self.k_known_at)

    def _request(self, budget: int) -> tuple[float, float]:
        """What a full request takes beside a budget of B, and its standard error."""
        if not self.model.hybrid:
            return self.workload.blocks(self.model.block_size) * self.model.block_size, 0.0
        cost = self.model.request_bytes(self.workload.length, budget)
        return cost.n, cost.s

    def _branches(self, seqs, budget, requests=0, quantile=0.0):
        request, error = self._request(budget) if requests else (0.0, 0.0)
        room = self._room(budget) if quantile else 0.0
        for run, kept in (
            ((1.0, -budget, 0.0, 0.0, 0.0), 0.0),
            ((0.0, 0.0, 1.0, -min(seqs, budget), -budget), room),
        ):
            slope = np.array(run)
            variance = max(slope @ self.covariance @ slope, 0.0) + (requests * error) ** 2
            stderr = math.sqrt(variance)
            left = float(slope @ self.values) - requests * request
            yield left - quantile * stderr - kept, stderr


def open_k(model: MemoryModel) -> tuple[float, int]:
    """(bytes, tokens): how large a k that is only assumed to be 0 can be, and where that is known.

    a2 was fitted with the k of the sampler's launches in it: only a budget above theirs adds.
    """
    known_at = min(fitted.flags[1] for fitted in model.launches if fitted.branch == "sampler")
    return (min(LARGEST_ASSUMED_K, model.k1.n) if model.k_source == "assumed 0" else 0.0), known_at


def one_sided_quantile(model: MemoryModel) -> float:
    """95 % one-sided: normal for printed rounding, Student's t where residuals set the error."""
    if model.dof > 0 and model.chi2 > model.dof:
        from scipy.special import stdtrit

        return float(stdtrit(model.dof, CONFIDENCE))
    return NORMAL_95
