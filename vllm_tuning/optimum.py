"""From the memory model and a workload to max_num_seqs and max_num_batched_tokens.

Point C: the largest number of full requests that the pool holds, with the largest token budget
that is free of charge, because there the model run and the sampler run have the same peak.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from uncertainties import UFloat

from .four_launches import FourLaunchEstimate, four_launch_estimate
from .launch import serve_flags
from .law import refined_point
from .memory_model import MemoryModel
from .pool import Pool
from .units import is_known
from .workload import Workload

PRICED_BUDGETS = tuple(2**power for power in range(9, 16))  # 512 ... 32768


@dataclass(frozen=True)
class TradeOff:
    """What a token budget costs: the pool it leaves (bytes) and the requests that still fit."""

    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    max_num_seqs: int


@dataclass(frozen=True)
class Recommended:
    """Integers that obey vLLM's rules and fit with 95 % confidence, and the pool to expect."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    kv_cache_tokens_stderr: float | None
    concurrency: float

    @property
    def flags(self) -> str:
        return serve_flags(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The answer in three steps: the four-launch estimate, the refined point, and the integers.

    ``reason`` names why there is no recommendation: k1, k2, request_cost, kappa, pool, k_above_k1
    or nothing_fits.
    """

    model: MemoryModel
    workload: Workload
    method: FourLaunchEstimate
    max_num_seqs: UFloat | None = None
    max_num_batched_tokens: UFloat | None = None
    recommended: Recommended | None = None
    reason: str | None = None
    prices: tuple[TradeOff, ...] = ()

    @property
    def proviso(self) -> str:
        """What the confidence rests on: an assumed k is given room up to a 70B model's."""
        assumed = ", for k up to 16 KiB" if self.model.k_source == "assumed 0" else ""
        return "95 % confidence" + assumed


def solve(model: MemoryModel, workload: Workload, least_budget: int = 1) -> Optimum:
    """The optimum of a memory model for a workload.

    least_budget: tokens; where prefill is not chunked, vLLM refuses less than max_model_len.
    """
    method = (
        FourLaunchEstimate(reason="hybrid")
        if model.hybrid
        else four_launch_estimate(model.launches, workload.length)
    )
    found = Optimum(model=model, workload=workload, method=method)
    if reason := _unknown(model, workload):
        return replace(found, reason=reason)
    seqs, tokens = optimum_of(model, workload.length)
    found = replace(found, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    pool = Pool(model, workload, least_budget)
    best = _recommend(pool)
    if best is None:
        return replace(found, reason="nothing_fits")
    return replace(found, recommended=best, prices=tuple(_prices(pool)))


def optimum_of(model: MemoryModel, length: int) -> tuple[UFloat, UFloat]:
    """(C*, B*) of ``refined_point`` for requests of ``length`` tokens, where their cost is known.

    Where a request costs more beside a larger budget, at the budget where the two agree.
    """
    budget, tried = 1, set()
    while True:
        tried.add(budget)
        seqs, tokens = refined_point(
            *model.pools_at_zero,
            model.request_bytes(length, budget),
            model.k1,
            model.k2,
            model.k,
        )
        if not model.hybrid or (budget := max(1, int(tokens.n))) in tried:
            return seqs, tokens


def longest_request(model: MemoryModel) -> int:
    """max_model_len of the launches, tokens; 0 where none gives it."""
    return max((f.launch.max_model_len or 0 for f in model.launches), default=0)


def _unknown(model: MemoryModel, workload: Workload) -> str | None:
    if not is_known(model.k1):
        return "k1"
    if not is_known(model.k2):
        return "k2"
    if not is_known(model.request_bytes(workload.length, 1)):
        return "request_cost" if model.hybrid else "kappa"
    if not is_known(model.pool_at_zero_tokens):
        return "pool"
    return "k_above_k1" if model.k1.n <= model.k.n else None


def _recommend(pool: Pool) -> Recommended | None:
    seqs = pool.most_requests(pool.largest_free_token_budget)
    if not seqs:
        return None
    budget = pool.largest_free_token_budget(seqs)
    tokens = pool.whole_tokens(seqs, budget)
    return Recommended(
        seqs,
        budget,
        pool.model.pool(seqs, budget).n,
        tokens,
        None if tokens is None else pool.stderr(seqs, budget),
        pool.concurrency(seqs, budget),
    )


def _prices(pool: Pool) -> Iterator[TradeOff]:
    for budget in PRICED_BUDGETS:
        seqs = min(pool.most_requests(lambda _, budget=budget: budget), budget)
        at = max(seqs, 1)
        tokens = pool.whole_tokens(at, budget)
        kv_cache = pool.model.pool(at, budget).n
        yield TradeOff(budget, kv_cache, tokens and max(0, tokens), seqs)
