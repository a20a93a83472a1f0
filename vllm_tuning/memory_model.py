"""From launches to the memory model: K1, a1, K2, a2, k with their covariance.

Two routes lead there. ``peak_activation`` fits the printed P. ``kv_only`` fits the printed pool:
since KV = A - P, differences of KV are differences of -P, and neither P nor N is needed. The KV
cache size in tokens times the bytes of a token is usually the finest reading of the pool.
The route with the smaller error is used.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from uncertainties import UFloat, correlated_values

from .branches import SIGNIFICANT, BranchFit, fit_branches
from .launch import KNOBS, Launch, column
from .law import model_run, sampler_run
from .least_squares import scatter
from .readings import Measurement, Readings, corrections_to_pool, measurements, rounding
from .units import UNKNOWN, exact, is_known
from .workload import RequestCost


@dataclass(frozen=True)
class FittedLaunch:
    """One launch as the model sees it; bytes, None where the launches cannot say."""

    launch: Launch
    branch: str
    peak_activation: float | None
    kv_cache: float | None
    residual: float

    @property
    def flags(self) -> tuple[int | None, int]:
        """(C, B); C is None where no launch gives it, B is known of each that is fitted."""
        tokens = self.launch.max_num_batched_tokens
        assert tokens is not None
        return self.launch.max_num_seqs, tokens


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B), and the pool A - G - P that it leaves.

    Parameters are ``uncertainties`` numbers in bytes, correlated with one another, NaN where the
    launches do not identify them; ``unresolved`` holds the slopes that rounding alone explains.
    ``pool_at_zero_tokens`` = A - a1 and ``pool_at_zero_requests`` = A - a2 are known without A
    where the pool was printed; ``left_over`` is A + G = TM*U - M - N. ``kv_per_token`` is kappa;
    where layers of several kinds share the pool (``hybrid``) it is unknown, and ``request_cost``
    takes its place. ``graph_charge`` is G. ``k_source``: fitted, config, assumed 0 or unknown.
    """

    route: str | None = None
    k1: UFloat = UNKNOWN
    a1: UFloat = UNKNOWN
    k2: UFloat = UNKNOWN
    a2: UFloat = UNKNOWN
    k: UFloat = UNKNOWN
    k_source: str = "unknown"
    pool_at_zero_tokens: UFloat = UNKNOWN
    pool_at_zero_requests: UFloat = UNKNOWN
    left_over: UFloat = UNKNOWN
    kv_per_token: UFloat = UNKNOWN
    hybrid: bool = False
    request_cost: RequestCost | None = None
    graph_charge: float = 0.0
    block_size: int = 16
    launches: tuple[FittedLaunch, ...] = ()
    readings: Readings | None = None
    unit: float = 0.0
    chi2: float = 0.0
    dof: int = 0
    unresolved: dict[str, UFloat] = field(default_factory=dict)

    @property
    def pools_at_zero(self) -> tuple[UFloat, UFloat]:
        """A - G - a1 and A - G - a2, bytes: what is left at 0 tokens, and at 0 requests."""
        return (
            self.pool_at_zero_tokens - self.graph_charge,
            self.pool_at_zero_requests - self.graph_charge,
        )

    def pools(self, seqs, tokens) -> tuple[UFloat, UFloat]:
        """Pool in bytes that the model run and that the sampler run would leave at (C, B)."""
        at_zero_tokens, at_zero_requests = self.pools_at_zero
        model = at_zero_tokens - model_run(tokens, self.k1, 0)
        return model, at_zero_requests - sampler_run(tokens, seqs, self.k2, 0, self.k)

    def pool(self, seqs, tokens) -> UFloat:
        """KV(B, C) = A - G - P(B, C), bytes: the smaller of the two pools."""
        return min(self.pools(seqs, tokens), key=lambda pool: pool.n)

    def request_bytes(self, length: int, budget: int) -> UFloat:
        """Bytes of a full request of ``length`` tokens beside a budget of B; NaN if unknown."""
        if not self.hybrid:
            return self.kv_per_token * length
        cost = self.request_cost and self.request_cost.bytes_of(length, budget)
        return UNKNOWN if cost is None else cost

    def moved(self, more: UFloat) -> "MemoryModel":
        """The model of a server with so many more bytes for weights, activation and pool."""
        launches = tuple(
            replace(fitted, kv_cache=None if fitted.kv_cache is None else fitted.kv_cache + more.n)
            for fitted in self.launches
        )
        names = ("pool_at_zero_tokens", "pool_at_zero_requests", "left_over")
        return replace(self, launches=launches, **{n: getattr(self, n) + more for n in names})


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


def fit_routes(
    used: list[Launch],
    kappa: UFloat,
    block_size: int = 16,
    hidden_state_bytes: float | None = None,
) -> list[MemoryModel]:
    """The model by each route that the launches give readings for.

    kappa: bytes of KV cache a token, NaN if it is not known or not one number; hidden_state_bytes:
    k, where config.json gives it.
    """
    corrections, errors = corrections_to_pool(used)
    hidden = hidden_state_bytes
    return [
        _solve(
            measurement,
            fit_branches(measurement.readings, hidden / measurement.scale.n if hidden else None),
            hidden,
            used,
            corrections,
            kappa,
            block_size,
        )
        for measurement in measurements(used, kappa, block_size, corrections, errors)
    ]


def most_certain(models: list[MemoryModel]) -> MemoryModel:
    """The model with the most parameters identified, then the smaller relative error of slopes.

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
        return unknown, sum(abs(slope.s / slope.n) for slope in slopes)

    model = min(models, key=uncertainty)
    slopes = {"k1": model.k1, "k2": model.k2}
    unresolved = {
        name: slope
        for name, slope in slopes.items()
        if is_known(slope) and slope.n < SIGNIFICANT * slope.s
    }
    for names in (
        ("k1", "a1", "pool_at_zero_tokens"),
        ("k2", "a2", "pool_at_zero_requests"),
    ):
        if names[0] in unresolved or not is_known(getattr(model, names[0])):
            model = replace(model, **dict.fromkeys(names, UNKNOWN))
    return replace(model, unresolved=unresolved)


def _solve(
    measurement: Measurement,
    fit: BranchFit,
    hidden: float | None,
    used,
    corrections,
    kappa,
    block_size,
) -> MemoryModel:
    """Parameters with one covariance, in bytes, and what they leave for the pool."""
    n = len(measurement.launches)
    gains, held = {}, {}
    for branch, which in ((fit.model_branch, ~fit.sampler), (fit.sampler_branch, fit.sampler)):
        if branch:
            run = "model" if branch is fit.model_branch else "sampler"
            for row, name in enumerate(branch.names):
                key = name if name != "level" else f"{run}_level"
                gains[key] = np.zeros(n)
                gains[key][which] = branch.fit.gain[row]
                held[key] = branch.fit.params[row]
    variance = measurement.readings.sigma**2 * scatter(fit.chi2, fit.dof)
    budget, budget_gain, budget_variance = _budget(measurement, used, corrections)
    names = [*gains, "budget"]
    rows = np.array([*gains.values(), budget_gain])
    covariance = (rows * variance) @ rows.T
    covariance[-1, -1] += budget_variance
    if math.isnan(budget):
        names, covariance = names[:-1], covariance[:-1, :-1]
    fitted = correlated_values([*held.values(), budget][: len(names)], covariance)
    values = dict.fromkeys(("k1", "a1", "k2", "a2", "k"), UNKNOWN) | {
        name: value if name == "budget" else value * measurement.scale
        for name, value in zip(names, fitted, strict=True)
    }
    left_over = values.pop("budget", UNKNOWN)
    if fit.k_fitted:
        k_source = "fitted"
    else:
        k_source = "config" if hidden else "assumed 0"
        values["k"] = exact(hidden or 0.0)
    if measurement.name == "peak_activation":
        at_zero = left_over - values["a1"], left_over - values["a2"]
    else:
        at_zero = -values["a1"], -values["a2"]
        values["a1"], values["a2"] = left_over + values["a1"], left_over + values["a2"]
    return MemoryModel(
        route=measurement.name,
        **{name: values[name] for name in ("k1", "a1", "k2", "a2", "k")},
        k_source=k_source,
        pool_at_zero_tokens=at_zero[0],
        pool_at_zero_requests=at_zero[1],
        left_over=left_over,
        kv_per_token=kappa,
        graph_charge=max(launch.graph_charge for launch in used),
        block_size=block_size,
        launches=_fitted_launches(
            measurement, fit, left_over.n, dict(zip(map(id, used), corrections, strict=True))
        ),
        readings=measurement.readings.scaled(measurement.scale.n),
        unit=float(measurement.readings.units.max() * measurement.scale.n),
        chi2=fit.chi2,
        dof=fit.dof,
    )


def _fitted_launches(
    measurement: Measurement, fit: BranchFit, left_over: float, corrections: dict[int, float]
) -> tuple[FittedLaunch, ...]:
    """Branch, predicted peak and pool, and measured - predicted in the reading's own quantity."""
    predicted, measured = (
        fit.predicted * measurement.scale.n,
        measurement.readings.y * measurement.scale.n,
    )
    if measurement.name == "peak_activation":
        peaks, pools, residual = predicted, left_over - predicted, measured - predicted
    else:
        peaks, pools, residual = left_over + predicted, -predicted, predicted - measured
    return tuple(
        FittedLaunch(
            launch,
            "sampler" if fit.sampler[i] else "model",
            _finite(peaks[i]),
            _finite(pools[i] - corrections[id(launch)]),
            float(residual[i]),
        )
        for i, launch in enumerate(measurement.launches)
    )


def _budget(measurement: Measurement, used, corrections) -> tuple[float, np.ndarray, float]:
    """A + G, its dependence on the readings, and the variance of its other terms.

    The mean of KV + P + G where both are printed (it is what vLLM really divided), else
    TM*U - M - N; NaN where neither is known.
    """
    n = len(measurement.launches)
    peak, kv = column(used, "peak_activation"), column(used, "kv_cache")
    both = np.isfinite(peak) & np.isfinite(kv)
    if both.any():
        total = float(np.mean((peak + kv + corrections)[both]))
        variances = rounding(kv) ** 2
        gain = np.zeros(n)
        if measurement.name == "peak_activation":
            mine = np.isfinite(peak)
            gain[:] = both[mine] / both.sum()
        else:
            variances += rounding(peak) ** 2
        return total, gain, float(np.sum(variances[both])) / both.sum() ** 2
    terms = [column(used, name) for name in ("total_memory", "model_weights", "non_torch")]
    utilization = column(used, "gpu_memory_utilization")
    whole = terms[0] * utilization - terms[1] - terms[2]
    if not np.isfinite(whole).any():
        return math.nan, np.zeros(n), 0.0
    factors = (utilization, 1, 1)
    variance = sum(
        (rounding(term) * factor) ** 2 for term, factor in zip(terms, factors, strict=True)
    )
    return float(np.nanmean(whole)), np.zeros(n), float(np.nanmean(variance))


def _finite(value) -> float | None:
    return float(value) if math.isfinite(value) else None
