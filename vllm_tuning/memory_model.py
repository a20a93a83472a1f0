"""From launches to the memory model: K1, a1, K2, a2, k, s with their covariance.

Two routes lead there. ``peak_activation`` fits the printed P. ``kv_only`` fits the printed pool:
since KV = A - P, differences of KV are differences of -P, and neither P nor N is needed. The KV
cache size in tokens times the bytes of a token is usually the finest reading of the pool.
The route with the smaller error is used.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from uncertainties import UFloat, correlated_values, ufloat

from .branches import EXPECTED, SIGNIFICANT, Split, fit_branches
from .known import LLAMA_3_8B, NOTHING, Known, Slopes
from .launch import KNOBS, Launch, column
from .law import model_run, sampler_run
from .least_squares import least_squares, scatter
from .readings import (
    LAW,
    Measurement,
    Readings,
    consumed,
    corrections_to_pool,
    granule,
    measurements,
    rounding,
)
from .releases import captured_sizes
from .units import UNKNOWN, is_known
from .workload import RequestCost


@dataclass(frozen=True)
class FittedLaunch:
    """One launch as the model sees it; bytes, None where the launches cannot say.

    ``residual``: measured - predicted in the reading's own quantity; ``left_out``: off the line.
    """

    launch: Launch
    branch: str
    peak_activation: float | None
    kv_cache: float | None
    residual: float
    left_out: bool = False

    @property
    def flags(self) -> tuple[int | None, int]:
        """(C, B); C is None where no launch gives it, B is known of each that is fitted."""
        tokens = self.launch.max_num_batched_tokens
        assert tokens is not None
        return self.launch.max_num_seqs, tokens


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B), and the pool A - G - s*C - P it leaves.

    Parameters are ``uncertainties`` numbers in bytes, correlated with one another, NaN where the
    launches do not identify them; ``unresolved`` holds the slopes that rounding alone explains.
    ``graph`` is what each captured size takes where its estimate is not on record, ``few``
    what each request of ``bend`` takes where the sampler sorts. ``k_source`` and ``s_source``:
    fitted, config or assumed; ``assumed``: the slope that rests on a1 = a2.
    ``pool_at_zero_tokens`` = A - a1 and ``pool_at_zero_requests`` = A - a2 are known without A
    where the pool was printed; ``left_over`` is A + G = TM*U - M - N. ``graphs``: G of no captured
    size, and of each one more. ``workspace``: above so many tokens the model run takes so many
    bytes more than K1 says, as a launch there showed.
    ``kv_per_token`` is kappa; where layers of several kinds share the pool (``hybrid``) it is
    unknown, and ``request_cost`` takes its place. All at the answer's ``gpu_memory_utilization``.
    ``lookahead``: tokens drafted a step. ``law`` is the standard error of one launch about the law,
    bytes; ``slopes`` those to expect.
    ``others``: the models by other splits of the launches into branches that explain them about
    as well.
    """

    route: str | None = None
    k1: UFloat = UNKNOWN
    a1: UFloat = UNKNOWN
    k2: UFloat = UNKNOWN
    a2: UFloat = UNKNOWN
    k: UFloat = UNKNOWN
    s: UFloat = UNKNOWN
    graph: UFloat = NOTHING
    few: UFloat = NOTHING
    k_source: str = "unknown"
    s_source: str = "unknown"
    assumed: str | None = None
    total_memory: UFloat = UNKNOWN
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    pool_at_zero_tokens: UFloat = UNKNOWN
    pool_at_zero_requests: UFloat = UNKNOWN
    left_over: UFloat = UNKNOWN
    kv_per_token: UFloat = UNKNOWN
    hybrid: bool = False
    request_cost: RequestCost | None = None
    graphs: tuple[float, float] = (0.0, 0.0)
    workspace: tuple[float, float] = (math.inf, 0.0)
    block_size: int = 16
    lookahead: int = 0
    launches: tuple[FittedLaunch, ...] = ()
    readings: Readings | None = None
    unit: float = 0.0
    law: float = 0.0
    chi2: float = 0.0
    dof: int = 0
    unresolved: dict[str, UFloat] = field(default_factory=dict)
    slopes: Slopes = LLAMA_3_8B
    others: tuple["MemoryModel", ...] = ()

    def graph_charge(self, seqs):
        """G, bytes: the estimate for CUDA graphs at C by the line through those of the launches."""
        return np.maximum(0.0, self.graphs[0] + self.graphs[1] * captured_sizes(seqs))

    def graph_bytes(self, seqs):
        """What graphs take at C: the estimates on record, and what is allowed for the others."""
        return self.graph * captured_sizes(seqs) + self.graph_charge(seqs)

    def workspace_at(self, tokens):
        """Bytes that the model run takes at B beside a1 + K1*B."""
        return np.where(np.asarray(tokens) > self.workspace[0], self.workspace[1], 0.0)

    def pools(self, seqs, tokens) -> tuple[UFloat, UFloat]:
        """Pool in bytes that the model run and that the sampler run would leave at (C, B)."""
        taken = self.s * seqs + self.graph_bytes(seqs)
        run = model_run(tokens, self.k1, 0) + self.workspace_at(tokens)
        model = self.pool_at_zero_tokens - taken - run
        sampler = sampler_run(tokens, seqs, self.k2, 0, self.k, self.few)
        return model, self.pool_at_zero_requests - taken - sampler

    def pool(self, seqs, tokens) -> UFloat:
        """KV(B, C) = A - G - s*C - P(B, C), bytes: the smaller of the two pools."""
        return min(self.pools(seqs, tokens), key=lambda pool: pool.n)

    def request_blocks(self, length: int) -> int:
        """Whole blocks of a request of ``length`` tokens, and of those drafted ahead of it."""
        return -(-(length + self.lookahead) // self.block_size)

    def request_bytes(self, length: int, budget: int) -> UFloat:
        """Bytes of a full request of ``length`` tokens beside a budget of B; NaN if unknown."""
        if not self.hybrid:
            return self.kv_per_token * length
        cost = self.request_cost and self.request_cost.bytes_of(length, budget)
        return UNKNOWN if cost is None else cost

    def spread(self, name: str) -> UFloat:
        """A parameter whose error covers what the other splits of the launches give for it."""
        value = getattr(self, name)
        apart = [
            abs(other.n - value.n)
            for model in self.others
            if is_known(other := getattr(model, name))
        ]
        return value + ufloat(0, max(apart)) if is_known(value) and any(apart) else value

    def moved(self, more: UFloat) -> "MemoryModel":
        """The model of a server with so many more bytes for weights, activation and pool."""
        launches = tuple(
            replace(fitted, kv_cache=None if fitted.kv_cache is None else fitted.kv_cache + more.n)
            for fitted in self.launches
        )
        names = ("pool_at_zero_tokens", "pool_at_zero_requests", "left_over")
        return replace(
            self,
            launches=launches,
            others=tuple(model.moved(more) for model in self.others),
            **{n: getattr(self, n) + more for n in names},
        )


def usable(launches: list[Launch]) -> tuple[list[Launch], list[tuple[Launch, tuple[str, ...]]]]:
    """Launches to fit; and the others, each with the names of what it lacks.

    A launch needs B, C and a reading. C may be unknown where it is unknown in all of them. One
    whose pool was set by hand lacks nothing, and measures nothing.
    """
    known_seqs = any(launch.max_num_seqs for launch in launches)
    used, others = [], []
    for launch in launches:
        lacking = tuple(
            name
            for name in KNOBS
            if getattr(launch, name) is None and (known_seqs or name != "max_num_seqs")
        )
        if (launch.peak_activation, launch.kv_cache, launch.kv_cache_tokens) == (None,) * 3:
            lacking += ("reading",)
        if lacking or not launch.measured:
            others.append((launch, lacking))
        else:
            used.append(launch)
    return used, others


def usual(launches: list[Launch], name: str):
    """What most launches say of ``name``, the last of them where even; None where none does."""
    values = [value for launch in launches if (value := getattr(launch, name)) is not None]
    counts = Counter(reversed(values))
    return max(counts, key=counts.__getitem__) if counts else None


def fit_routes(
    used: list[Launch],
    kappas: dict[str | None, UFloat],
    known: Known,
    **answer,
) -> list[MemoryModel]:
    """The model by each route that the launches give readings for.

    kappas: bytes of KV cache a token by KV cache dtype, NaN where not known or not one number;
    known: what is known beside the launches; answer: fields of the model, such as the utilization
    and the KV cache dtype that it is for.
    """
    corrections, _ = corrections_to_pool(used)
    models: list[MemoryModel] = []
    for measurement in measurements(used, kappas, answer.get("gpu_memory_utilization")):
        beside = known
        if measurement.name == "peak_activation":  # P holds neither the runner's state nor graphs
            if models and consumed(used):
                continue  # P falls where N rises: they are one quantity
            beside = replace(known, s=NOTHING, graph=NOTHING)
        splits = fit_branches(measurement.readings, beside)
        model, *others = [
            _solve(measurement, split, known, used, corrections, answer) for split in splits
        ] or [_no_law(measurement)]
        models.append(replace(model, others=tuple(others)))
    return models


def _no_law(measurement: Measurement) -> MemoryModel:
    """No law that grows with B and C gives the readings: chi2 is inf."""
    return MemoryModel(
        launches=tuple(
            FittedLaunch(launch, "model", None, None, math.inf) for launch in measurement.launches
        ),
        readings=measurement.readings,
        chi2=math.inf,
    )


def most_certain(models: list[MemoryModel]) -> MemoryModel:
    """The model with the most parameters identified, then the smaller relative error of slopes.

    Where a request keeps memory beside P, the pool says more than P.
    Slopes within their rounding become unknown, and with them the level of their branch.
    """

    def uncertainty(model: MemoryModel) -> tuple:
        unknown = sum(
            not is_known(value)
            for value in (
                model.k1,
                model.k2,
                model.pool_at_zero_tokens,
                model.pool_at_zero_requests,
            )
        )
        slopes = [slope for slope in (model.k1, model.k2) if is_known(slope) and slope.n]
        beside = model.route == "peak_activation" and bool(model.s.n or model.s.s or model.graph.s)
        return unknown, beside, sum(abs(slope.s / slope.n) for slope in slopes)

    model = min(models, key=uncertainty)
    seen = {"k1": model.k1, "k2": model.k2}
    if model.route == "kv_only":  # the pool moves with what requests keep beside P, too
        seqs = [f.flags[0] or 1 for f in model.launches if f.branch == "sampler"] or [1]
        sizes = float(captured_sizes(max(seqs)) - captured_sizes(min(seqs)))
        seen["k2"] += model.s + model.graph * (sizes / max(1, max(seqs) - min(seqs)))
    unresolved = {
        name: getattr(model, name)
        for name, slope in seen.items()
        if is_known(slope) and slope.n < SIGNIFICANT * slope.s
    }
    for names in (
        ("k1", "a1", "pool_at_zero_tokens"),
        ("k2", "a2", "pool_at_zero_requests"),
    ):
        if names[0] in unresolved or not is_known(getattr(model, names[0])):
            model = replace(model, **dict.fromkeys(names, UNKNOWN))
    others = tuple(other for other in model.others if is_known(other.k1) and is_known(other.k2))
    return replace(model, unresolved=unresolved, others=others)


def _solve(
    measurement: Measurement, split: Split, known: Known, used, corrections, answer
) -> MemoryModel:
    """Parameters with one covariance, in bytes, and what they leave for the pool."""
    readings, scale = measurement.readings, measurement.scale
    law = np.array([LAW * granule(launch) for launch in measurement.launches])
    factor = scatter(split.chi2, split.dof, EXPECTED)
    variance = np.maximum(readings.sigma**2 * factor, readings.printed**2) * readings.repeats
    budget, budget_gain, budget_variance = _budget(
        measurement, split, known, used, corrections, answer
    )
    names = [*split.fitted, "budget"]
    rows = np.vstack([split.gain, budget_gain])
    covariance = (rows * variance) @ rows.T
    before = (split.known_gain * split.known_errors**2) @ split.known_gain.T
    covariance[:-1, :-1] += before
    covariance[-1, -1] += budget_variance
    if math.isnan(budget):
        names, covariance = names[:-1], covariance[:-1, :-1]
    fitted = correlated_values([split.params.get(name, budget) for name in names], covariance)
    held = {name: getattr(known, name) for name in ("k", "s", "graph", "few", "total_memory")}
    values = dict.fromkeys(("k1", "a1", "k2", "a2"), UNKNOWN) | held
    values |= {
        name: value if name == "budget" else value * scale
        for name, value in zip(names, fitted, strict=True)
    }
    for intercept, slope in (("a1", "k1"), ("a2", "k2")):
        if slope not in split.params:
            values[intercept] = UNKNOWN  # the level of a branch is not its intercept
    left_over = values.pop("budget", UNKNOWN)
    if measurement.name == "peak_activation":
        at_zero = left_over - values["a1"], left_over - values["a2"]
    else:
        at_zero = -values["a1"], -values["a2"]
        values["a1"], values["a2"] = left_over + values["a1"], left_over + values["a2"]
    about = math.sqrt(factor) * float(law.max())
    apart = abs((at_zero[0] - at_zero[1]).n)
    if split.dof <= 0 and known.intercepts < apart < math.inf:
        about = math.hypot(about, apart / 2)  # nothing checks the law, and it looks broken
    return MemoryModel(
        route=measurement.name,
        **values,
        k_source=_source(known.k, values["k"]),
        s_source=_source(known.s, values["s"]),
        assumed=split.assumed,
        pool_at_zero_tokens=at_zero[0],
        pool_at_zero_requests=at_zero[1],
        left_over=left_over,
        graphs=_graphs(used),
        workspace=_workspace(readings, split),
        launches=_fitted_launches(
            measurement, split, left_over.n, dict(zip(map(id, used), corrections, strict=True))
        ),
        readings=readings,
        unit=float(readings.units.max()),
        law=about,
        chi2=split.chi2,
        dof=split.dof,
        **answer,
    )


def _workspace(readings: Readings, split: Split) -> tuple[float, float]:
    """From which budget on the launch that is off the line is so, and by how many bytes."""
    at = split.left_out
    if at is None:
        return math.inf, 0.0
    below = readings.tokens[readings.tokens < readings.tokens[at]].max()
    return float(below), float(readings.y[at] - split.predicted[at])


def _graphs(used: list[Launch]) -> tuple[float, float]:
    """G of no captured size, and of each one more: a line through the charges of the launches."""
    charges = column(used, "graph_charge")
    sizes = np.array([captured_sizes(launch.max_num_seqs or 1) for launch in used])
    if not np.ptp(charges) or not np.ptp(sizes):
        return float(np.mean(charges)), 0.0
    level, each = least_squares(np.column_stack([np.ones(len(used)), sizes]), charges).params
    return (float(level), float(each)) if each > 0 else (float(np.mean(charges)), 0.0)


def _source(before: UFloat, after: UFloat) -> str:
    """Where a parameter comes from: the launches, where they leave less than half its error."""
    if is_known(before) and not before.s:
        return "config"
    return (
        "fitted" if abs(after.n - before.n) > 4 * before.s or after.s < before.s / 2 else "assumed"
    )


def _fitted_launches(
    measurement: Measurement, split: Split, left_over: float, corrections: dict[int, float]
) -> tuple[FittedLaunch, ...]:
    """Branch, predicted peak and pool, and measured - predicted in the reading's own quantity."""
    predicted, measured = split.predicted, measurement.readings.y
    if measurement.name == "peak_activation":
        peaks, pools, residual = predicted, left_over - predicted, measured - predicted
    else:
        peaks, pools, residual = left_over + predicted, -predicted, predicted - measured
    return tuple(
        FittedLaunch(
            launch,
            "sampler" if split.sampler[i] else "model",
            _finite(peaks[i]),
            _finite(pools[i] - corrections[id(launch)]),
            float(residual[i]),
            i == split.left_out,
        )
        for i, launch in enumerate(measurement.launches)
    )


def _budget(
    measurement: Measurement, split: Split, known: Known, used, corrections, answer
) -> tuple[float, np.ndarray, float]:
    """A + G, its dependence on the readings, and the variance of its other terms.

    The mean of KV + P + G where both are printed (it is what vLLM really divided), else
    TM*U - M - N, moved to the answer's utilization; NaN where neither is known.
    """
    n, total_memory, s = len(measurement.launches), split.params["total_memory"], known.s.n
    utilization = column(used, "gpu_memory_utilization")
    at = answer.get("gpu_memory_utilization")
    moved = np.nan_to_num(total_memory * (utilization - (at or 0.0)))
    peak, kv = column(used, "peak_activation"), column(used, "kv_cache")
    corrections = corrections + s * np.nan_to_num(column(used, "max_num_seqs"))
    both = np.isfinite(peak) & np.isfinite(kv)
    if both.any():
        total = float(np.mean((peak + kv + corrections - moved)[both]))
        variances = rounding(kv) ** 2
        gain = np.zeros(n)
        if measurement.name == "peak_activation":
            mine = np.isfinite(peak)
            gain[:] = both[mine] / both.sum()
        else:
            variances += rounding(peak) ** 2
        return total, gain, float(np.sum(variances[both])) / both.sum() ** 2
    terms = [column(used, name) for name in ("total_memory", "model_weights", "non_torch")]
    whole = terms[0] * utilization - terms[1] - terms[2] - moved
    if not np.isfinite(whole).any():
        return math.nan, np.zeros(n), 0.0
    factors = (utilization, 1, 1)
    variance = sum(
        (rounding(term) * factor) ** 2 for term, factor in zip(terms, factors, strict=True)
    )
    return float(np.nanmean(whole)), np.zeros(n), float(np.nanmean(variance))


def _finite(value) -> float | None:
    return float(value) if math.isfinite(value) else None
