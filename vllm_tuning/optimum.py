"""From the memory model and a workload to max_num_seqs and max_num_batched_tokens.

Point C: the largest number of full requests that the pool holds, with the largest token budget
that is free of charge, because there the model run and the sampler run have the same peak. Where
the branches do not meet, or where point C gives less than the requests need, the budget is the
largest that costs at most 1 % of the requests. What one launch proves answers where a fit cannot.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from uncertainties import UFloat, ufloat

from .branches import SIGNIFICANT
from .four_launches import FourLaunchEstimate, four_launch_estimate
from .launch import first_known, serve_flags
from .law import refined_point
from .memory_model import FittedLaunch, MemoryModel
from .pool import Bound, Pool, bounds
from .releases import default_flags
from .units import is_known
from .workload import Workload, largest

PRICED_BUDGETS = tuple(2**power for power in range(9, 16))  # 512 ... 32768
PRICE = 0.01  # of the requests, what a larger token budget may cost
BEYOND = 2  # times the largest budget launched, to which point C is followed


@dataclass(frozen=True)
class TradeOff:
    """What a token budget costs: the pool it leaves (bytes) and the requests that still fit."""

    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    max_num_seqs: int


@dataclass(frozen=True)
class Recommended:
    """Integers that obey vLLM's rules and fit with 95 % confidence, and the pool to expect.

    ``basis``: fit, or bound (what one launch proves); ``at_point``: point C, not the price rule.
    ``needed_tokens``: what the server must print at least for the requests to fit, None where
    tokens are not the cost of a request.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    kv_cache_tokens_stderr: float | None
    concurrency: float
    basis: str = "fit"
    needed_tokens: int | None = None
    at_point: bool = False

    @property
    def place(self) -> str:
        return "recommended (point C)" if self.at_point else "recommended"

    @property
    def proviso(self) -> str:
        """What the number of requests rests on."""
        return "95 % confidence" if self.basis == "fit" else "a launch shows it"

    @property
    def flags(self) -> str:
        return serve_flags(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The answer in three steps: the four-launch estimate, the refined point, and the integers.

    ``reason`` names why a fit gives no recommendation: k1, k2, request_cost, kappa, pool,
    k_above_k1 or nothing_fits. ``default``: what vLLM's own flags give, None where not known.
    """

    model: MemoryModel
    workload: Workload
    method: FourLaunchEstimate
    max_num_seqs: UFloat | None = None
    max_num_batched_tokens: UFloat | None = None
    recommended: Recommended | None = None
    reason: str | None = None
    prices: tuple[TradeOff, ...] = ()
    default: tuple[int, int, int] | None = None


def solve(model: MemoryModel, workload: Workload, least_budget: int = 1) -> Optimum:
    """The optimum of a memory model for a workload.

    least_budget: tokens; where prefill is not chunked, vLLM refuses less than max_model_len.
    """
    here = [
        fitted
        for fitted in model.launches
        if fitted.launch.gpu_memory_utilization in (None, model.gpu_memory_utilization)
        and fitted.launch.kv_cache_dtype in (None, model.kv_cache_dtype)
    ]
    method = (
        FourLaunchEstimate(reason="hybrid")
        if model.hybrid
        else four_launch_estimate(here, workload.length)
    )
    found = Optimum(model=model, workload=workload, method=method)
    reason = _unknown(model, workload)
    if not is_known(model.request_bytes(workload.length, 1)):
        counted = filter(None, (_by_concurrency(each, workload) for each in here))
        best = max(counted, key=_size, default=None) if model.hybrid else None
        reason = "request_cost" if model.hybrid else reason
        return replace(found, reason=reason, recommended=best)
    proved = (_by_bound(model, workload, each, least_budget) for each in bounds(model))
    best = max(filter(None, proved), key=_size, default=None)
    if not reason:
        seqs, tokens = optimum_of(model, workload.length)
        found = replace(found, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        pool = Pool(model, workload, least_budget)
        fitted = _recommend(pool, tokens)
        found = replace(found, prices=tuple(_prices(pool)), default=_default(pool))
        reason = None if fitted else "nothing_fits"
        best = _better(fitted, best, workload)
    return replace(found, recommended=best, reason=reason)


def _better(
    fitted: Recommended | None, proved: Recommended | None, workload: Workload
) -> Recommended | None:
    """The fit's answer, but for what a launch proves where that serves more requests as well."""
    if fitted is None or proved is None:
        return fitted or proved
    more = proved.max_num_seqs > (1 + PRICE) * fitted.max_num_seqs
    enough, other = (
        each.max_num_batched_tokens >= budget_needed(each.max_num_seqs, workload)
        for each in (proved, fitted)
    )
    return proved if more and (enough or not other) else fitted


def optimum_of(model: MemoryModel, length: int) -> tuple[UFloat, UFloat]:
    """(C*, B*) of ``refined_point`` for requests of ``length`` tokens, where their cost is known.

    Where a request costs more beside a larger budget, at the budget where the two agree. The error
    covers the other splits of the launches into branches.
    """
    point, *others = (_point(each, length) for each in (model, *model.others))
    return tuple(
        value + ufloat(0, max(abs(other[i].n - value.n) for other in others)) if others else value
        for i, value in enumerate(point)
    )


def _point(model: MemoryModel, length: int) -> tuple[UFloat, UFloat]:
    """The point where a request and the graphs cost what they cost at the point itself."""
    charged, budget, tried = 1, 1, set()
    while True:
        tried.add((charged, budget))
        graphs = model.graph_bytes(charged)
        seqs, tokens = refined_point(
            model.pool_at_zero_tokens - graphs,
            model.pool_at_zero_requests - graphs,
            model.request_bytes(length, budget) + model.s,
            model.k1,
            model.k2,
            model.k,
        )
        charged = max(1, int(seqs.n))
        budget = max(1, int(tokens.n)) if model.hybrid else 1
        if (charged, budget) in tried:
            return seqs, tokens


def longest_request(model: MemoryModel) -> int:
    """max_model_len of the launches, tokens; 0 where none gives it."""
    return max((f.launch.max_model_len or 0 for f in model.launches), default=0)


def budget_needed(seqs: int, workload: Workload) -> int:
    """Tokens of a step that C requests need, their prefill and decoding in balance.

    ceil(C * (in + out - 1) / out): below it the budget throttles both.

    >>> budget_needed(148, Workload(512, 128))
    739
    """
    return -(-seqs * (workload.length - 1) // workload.output_len)


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


def _recommend(pool: Pool, balance: UFloat) -> Recommended | None:
    """Point C where it is real and enough, else the price rule; the slack goes to the budget."""
    launched = max(fitted.flags[1] for fitted in pool.model.launches)
    meets = balance.n > max(0.0, SIGNIFICANT * balance.s)

    def smallest(seqs: int) -> int:
        return max(seqs, pool.least_budget)

    def at_point(seqs: int) -> int:  # where it lies far out, no further than the requests need
        far = max(BEYOND * launched, budget_needed(seqs, pool.workload))
        return min(far, pool.largest_free_token_budget(seqs))

    def free(seqs: int) -> int:  # less a little, which comes back with the slack below
        return max(smallest(seqs), int((1 - PRICE) * at_point(seqs)))

    seqs = pool.most_requests(free) if meets else 0
    budget, most = free(seqs), max(launched, at_point(seqs))
    at_c = bool(seqs) and budget >= budget_needed(seqs, pool.workload)
    if not at_c:
        worth = math.ceil((1 - PRICE) * pool.most_requests(smallest))
        if not worth:
            return None
        priced = min(launched, largest(lambda tokens: pool.fits(worth, tokens), launched))

        def wanted(seqs: int) -> int:
            needed = max(priced, budget_needed(seqs, pool.workload))
            return max(smallest(seqs), min(launched, needed))

        seqs = pool.most_requests(wanted)
        budget, most = wanted(seqs), max(launched, wanted(seqs))
    slack = largest(lambda tokens: pool.fits(seqs, tokens), most, near=budget)
    return _expected(pool, seqs, max(budget, min(most, slack)), at_c)


def _expected(pool: Pool, seqs: int, budget: int, at_point: bool) -> Recommended:
    tokens = pool.whole_tokens(seqs, budget)
    return Recommended(
        seqs,
        budget,
        pool.left(seqs, budget) * pool.bytes,
        tokens,
        None if tokens is None else pool.stderr(seqs, budget),
        pool.concurrency(seqs, budget),
        needed_tokens=_needed(pool.model, seqs, pool.workload),
        at_point=at_point,
    )


def _needed(model: MemoryModel, seqs: int, workload: Workload) -> int | None:
    """KV cache tokens that so many full requests and the reserved block take."""
    blocks = seqs * model.request_blocks(workload.length) + 1
    return None if model.hybrid else blocks * model.block_size


def _by_bound(
    model: MemoryModel, workload: Workload, bound: Bound, least_budget: int
) -> Recommended | None:
    """The answer that one launch proves: as many requests as its own pool holds."""
    budget, block = bound.max_num_batched_tokens, model.block_size * model.kv_per_token.n
    request, reserved = model.request_blocks(workload.length) * block, block
    if cost := model.request_cost:
        each = model.request_bytes(workload.length, budget)
        request, reserved = each.n + 2 * each.s, cost.reserved * cost.block_bytes

    def holds(seqs: int) -> bool:
        pool = bound.at(seqs, max(seqs, budget))
        return seqs * request + reserved <= pool * (1 + 1e-12)

    seqs = largest(holds)
    if not seqs or budget < least_budget:
        return None
    left = bound.at(seqs, budget)
    tokens = None if model.hybrid else int(left / block + 1e-6) * model.block_size
    return Recommended(
        seqs,
        budget,
        left,
        tokens,
        None if tokens is None else bound.error / model.kv_per_token.n,
        left / request,
        "bound",
        _needed(model, seqs, workload),
    )


def _by_concurrency(fitted: FittedLaunch, workload: Workload) -> Recommended | None:
    """What a launch proves by its printed concurrency: so many requests of max_model_len fit."""
    launch, (seqs, tokens) = fitted.launch, fitted.flags
    held = min(seqs or 0, math.floor((launch.max_concurrency or 0) - 0.005))
    if held < 1 or workload.length > (launch.max_model_len or 0) or launch.kv_cache is None:
        return None
    concurrency = launch.max_concurrency or 0.0
    return Recommended(held, tokens, launch.kv_cache, None, None, concurrency, "bound")


def _size(found: Recommended) -> tuple[int, int]:
    return found.max_num_seqs, found.max_num_batched_tokens


def _prices(pool: Pool) -> Iterator[TradeOff]:
    for budget in PRICED_BUDGETS:
        seqs = min(pool.most_requests(lambda _, budget=budget: budget), budget)
        at = max(seqs, 1)
        tokens = pool.whole_tokens(at, budget)
        kv_cache = pool.left(at, budget) * pool.bytes
        yield TradeOff(budget, kv_cache, tokens and max(0, tokens), seqs)


def _default(pool: Pool) -> tuple[int, int, int] | None:
    """(C, B) that vLLM takes by itself on this GPU, and the requests that fit there."""
    launches = [fitted.launch for fitted in pool.model.launches]
    total = first_known(launches, "total_memory")
    if total is None:
        return None
    seqs, budget = default_flags(total)
    held = max(0, math.floor((pool.left(seqs, budget) - pool.unit) / pool.request(budget)[0]))
    return seqs, budget, min(seqs, held)
