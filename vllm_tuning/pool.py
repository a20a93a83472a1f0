"""The pool at integer flags and the full requests that it holds, with 95 % confidence.

A fit gives the pool at any flags. One launch alone gives a lower bound: the peak never falls with
more tokens or requests, so any smaller pair of flags leaves at least as much.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from uncertainties import covariance_matrix

from .branches import EXPECTED
from .law import bend
from .memory_model import FittedLaunch, MemoryModel
from .readings import granule
from .releases import captured_sizes
from .units import NORMAL_95, exact, is_known, printed_half_widths
from .workload import Workload, largest

CONFIDENCE = 0.95


def minimum(means, covariance) -> tuple[float, float]:
    """Mean and variance of the smaller of two correlated normal variables (Clark 1961).

    >>> minimum([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])  # -1/sqrt(pi), 1 - 1/pi
    (-0.564189..., 0.681690...)
    """
    (one, two), ((v1, c), (_, v2)) = means, covariance
    theta = math.sqrt(max(v1 + v2 - 2 * c, 0.0))
    if theta <= 1e-12 * max(abs(one), abs(two), 1.0) or abs(two - one) > 8 * theta:
        return (one, v1) if one <= two else (two, v2)
    gap = two - one
    first = (1 + math.erf(gap / theta / math.sqrt(2))) / 2
    density = math.exp(-((gap / theta) ** 2) / 2) / math.sqrt(2 * math.pi)
    mean = gap * (1 - first) - theta * density  # above the first
    square = v1 * first + (v2 + gap**2) * (1 - first) - gap * theta * density
    return one + mean, max(square - mean**2, 0.0)


class _Surface:
    """One memory model's pool at integer flags, in ``size`` bytes: linear in the parameters."""

    def __init__(self, model: MemoryModel, size):
        parameters = (
            model.pool_at_zero_tokens,
            model.k1,
            model.pool_at_zero_requests,
            model.k2,
            model.k,
            model.s,
            model.graph,
            model.few,
        )
        in_units = [value / size for value in parameters]
        self.values = np.array([value.n for value in in_units])
        self.covariance = np.array(covariance_matrix(in_units))
        self.law, self.size, self.graph_charge = model.law / size.n, size.n, model.graph_charge
        self.workspace = model.workspace[0], model.workspace[1] / size.n

    def pool(self, seqs: int, budget: int, requests: float, error: float) -> tuple[float, float]:
        """What ``requests`` leave of the pool at (C, B), and its standard error."""
        shared = -seqs, -captured_sizes(seqs)
        runs = np.array(
            [
                (1.0, -budget, 0.0, 0.0, 0.0, *shared, 0.0),
                (0.0, 0.0, 1.0, -min(seqs, budget), -budget, *shared, -bend(min(seqs, budget))),
            ]
        )
        means = runs @ self.values
        if budget > self.workspace[0]:
            means[0] -= self.workspace[1]
        mean, variance = minimum(means, runs @ self.covariance @ runs.T)
        mean -= requests + float(self.graph_charge(seqs)) / self.size
        return mean, math.sqrt(variance + self.law**2 + error**2)


def _over_splits(surfaces: list[_Surface], seqs: int, budget: int) -> tuple[float, float]:
    """The pool by the first of the splits, and its standard error with what the others differ."""
    (mean, error), *others = (surface.pool(seqs, budget, 0, 0) for surface in surfaces)
    apart = max((abs(other - mean) for other, _ in others), default=0.0)
    return mean, math.hypot(error, apart)


class Pool:
    """The pool at integer flags, less what full requests need.

    In tokens where a request costs its whole blocks of them, else in bytes; ``unit`` is a block.
    Where several splits of the launches into branches are possible, confidence is for all of them.
    """

    def __init__(self, model: MemoryModel, workload: Workload, least_budget: int = 1):
        self.model, self.workload, self.least_budget = model, workload, least_budget
        self.quantile = one_sided_quantile(model)
        size, cost = model.kv_per_token, model.request_cost
        self.unit: float = model.block_size
        self.reserved = 1
        if cost:
            size, self.unit, self.reserved = exact(1), cost.block_bytes, cost.reserved
        self.bytes = size.n
        few = student_95(EXPECTED + max(0, model.dof))  # launches that tell the law's own scatter
        self.margin = (few - self.quantile) * model.law / size.n
        self.surfaces = [_Surface(each, size) for each in (model, *model.others)]
        self.bounds = list(bounds(model))

    def largest_free_token_budget(self, seqs: int) -> int:
        """The largest B that is free of charge beside C = seqs, but no less than vLLM allows."""
        at_zero_tokens, k1, at_zero_requests, k2, k = self.surfaces[0].values[:5]
        gap = at_zero_requests - at_zero_tokens
        free = math.floor((k2 * seqs - gap) / (k1 - k))
        most, more = self.surfaces[0].workspace
        if free > most:
            free = max(int(most), math.floor((k2 * seqs - gap - more) / (k1 - k)))
        return max(seqs, self.least_budget, free)

    def left(self, seqs: int, budget: int, requests: int = 0, quantile: float = 0.0) -> float:
        """What ``requests`` full ones leave of the pool at (C, B), less so many standard errors.

        What a launch proves is certain.
        """
        request, error = self.request(budget) if requests else (0.0, 0.0)
        taken = requests * request, requests * error
        surfaces = self.surfaces if quantile else self.surfaces[:1]
        margin = self.margin if quantile else 0.0
        pools = (surface.pool(seqs, budget, *taken) for surface in surfaces)
        left = min(mean - quantile * stderr for mean, stderr in pools) - margin
        if not quantile:
            return left
        proved = max((bound.at(seqs, budget) for bound in self.bounds), default=-math.inf)
        return max(left, proved / self.bytes * (1 + 1e-12) - taken[0] - 2 * taken[1])

    def stderr(self, seqs: int, budget: int) -> float:
        """Of the printed pool: the fit, other splits, and the floor to a block on both sides."""
        return math.hypot(_over_splits(self.surfaces, seqs, budget)[1], self.unit / math.sqrt(6))

    def concurrency(self, seqs: int, budget: int) -> float:
        """Full requests that the pool at (C, B) holds, as vLLM counts them."""
        whole = math.floor(self.left(seqs, budget) / self.unit) * self.unit * self.bytes
        return whole / self.request_bytes(budget)

    def request_bytes(self, budget: int) -> float:
        """Bytes of a full request in whole blocks, beside a budget of B."""
        return self.bytes * self.request(budget)[0]

    def whole_tokens(self, seqs: int, budget: int) -> int | None:
        """KV cache tokens that vLLM will print; None where their number depends on more."""
        if self.model.hybrid:
            return None
        block = self.model.block_size
        return math.floor(self.left(seqs, budget) / block) * block

    def fits(self, seqs: int, budget: int) -> bool:
        """seqs full requests and the reserved block fit with 95 % confidence."""
        return math.floor(self.left(seqs, budget, seqs, self.quantile) / self.unit) >= self.reserved

    def most_requests(self, budget_of) -> int:
        """The largest C that fits beside the budget ``budget_of(C)``; 0 if none does."""
        return largest(lambda seqs: self.fits(seqs, budget_of(seqs)))

    def request(self, budget: int) -> tuple[float, float]:
        """What a full request takes beside a budget of B, and its standard error."""
        if not self.model.hybrid:
            return self.model.request_blocks(self.workload.length) * self.model.block_size, 0.0
        cost = self.model.request_bytes(self.workload.length, budget)
        return cost.n, cost.s


@dataclass(frozen=True)
class Bound:
    """What one launch proves of all flags up to its own: the pool is at least ``kv_cache`` bytes.

    Fewer requests leave ``state`` more each. ``charged``: the graphs that it was charged;
    those of the model at as many requests count, where they are more.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: float
    error: float
    state: float
    charged: float
    graph_charge: Callable[[int], float]

    def at(self, seqs: int, budget: int) -> float:
        """Bytes of pool at (C, B), at least; -inf beyond the launch's flags."""
        if seqs > self.max_num_seqs or budget > self.max_num_batched_tokens:
            return -math.inf
        graphs = max(0.0, float(self.graph_charge(seqs)) - self.charged)
        return self.kv_cache + self.state * (self.max_num_seqs - seqs) - graphs


def bounds(model: MemoryModel) -> Iterator[Bound]:
    """Of each launch that prints its pool and both flags, at the utilization of the answer."""
    state = max(0.0, model.s.n - 2 * model.s.s) if is_known(model.s) else 0.0
    for fitted in model.launches:
        launch, (seqs, tokens) = fitted.launch, fitted.flags
        pool = printed_pool(fitted, model)
        if seqs is None or pool is None or launch.status == "failed":
            continue
        moved = (model.gpu_memory_utilization or 0.0) - (
            launch.gpu_memory_utilization or model.gpu_memory_utilization or 0.0
        )
        more = model.total_memory * moved if moved else exact(0)
        if is_known(more):
            error = math.hypot(granule(launch), more.s)
            least = pool + more.n - 2 * more.s
            yield Bound(seqs, tokens, least, error, state, launch.graph_charge, model.graph_charge)


def printed_pool(fitted: FittedLaunch, model: MemoryModel) -> float | None:
    """The pool of a launch at least, bytes: by its tokens, else by the printed GiB."""
    launch, kappa = fitted.launch, model.kv_per_token
    same = launch.kv_cache_dtype in (None, model.kv_cache_dtype)
    if launch.pool_tokens and is_known(kappa) and same and not model.hybrid:
        return launch.pool_tokens * kappa.n
    if launch.kv_cache is None:
        return None
    return launch.kv_cache - float(printed_half_widths([launch.kv_cache])[0])


@dataclass(frozen=True)
class Expected:
    """The pool to expect at flags, bytes, by the fit or (at least so much) by one launch."""

    max_num_seqs: int
    max_num_batched_tokens: int
    basis: str | None
    kv_cache: float | None = None
    kv_cache_stderr: float | None = None
    kv_cache_tokens: int | None = None
    graph_charge: float = 0.0


def expected_at(model: MemoryModel, seqs: int, budget: int) -> Expected:
    """The pool at (C, B) by the fit where it has both slopes, else what the launches prove."""
    if is_known(model.k1) and is_known(model.k2) and is_known(model.pool_at_zero_tokens):
        surfaces = [_Surface(each, exact(1)) for each in (model, *model.others)]
        found = Expected(seqs, budget, "fit", *_over_splits(surfaces, seqs, budget))
    else:
        known = max(bounds(model), key=lambda bound: bound.at(seqs, budget), default=None)
        if known is None or math.isinf(known.at(seqs, budget)):
            return Expected(seqs, budget, None)
        found = Expected(seqs, budget, "bound", known.at(seqs, budget), known.error)
    found = replace(found, graph_charge=float(model.graph_charge(seqs)))
    if model.hybrid or not is_known(model.kv_per_token):
        return found
    whole = model.block_size * model.kv_per_token.n
    tokens = max(0, math.floor(found.kv_cache / whole + 1e-6)) * model.block_size
    return replace(found, kv_cache_tokens=tokens)


def one_sided_quantile(model: MemoryModel) -> float:
    """95 % one-sided: normal for the usual scatter, Student's t where residuals set the error."""
    noisy = model.dof > 0 and model.chi2 > model.dof
    return student_95(EXPECTED + model.dof) if noisy else NORMAL_95


def student_95(dof: int) -> float:
    """The 95 % quantile of Student's t, within 0.3 % from two degrees of freedom on.

    Abramowitz and Stegun 26.7.5; tables give 2.920 and 2.132.

    >>> round(student_95(2), 3), round(student_95(4), 3)
    (2.912, 2.132)
    """
    z = NORMAL_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / dof**power for power, term in enumerate(terms, 1))
