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

from .branches import BranchFit, fit_branches
from .diagnosis import (
    ABOUT_THE_ANSWER,
    NextLaunch,
    check_launches,
    missing_reasons,
    next_launches,
    poor_fit,
    refuse_falling_peaks,
    repeats_differ,
    within_rounding,
)
from .diagnosis import notices as explained
from .kv_cache import ConfiguredCost, RequestCost, Shape, cost_of_request, is_hybrid
from .launch import KNOBS, Launch, Notice, column, first_known
from .law import model_run, sampler_run
from .readings import Route, corrections_to_pool, kv_per_token, rounding, routes
from .units import GIB, UNKNOWN, exact, is_known, nominal, stderr


@dataclass(frozen=True)
class FittedLaunch:
    """One launch as the model sees it; bytes, None where the launches cannot say."""

    launch: Launch
    branch: str
    peak_activation: float | None
    kv_cache: float | None
    residual: float


@dataclass(frozen=True)
class MemoryModel:
    """P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B), and the pool A - G - P that it leaves.

    Parameters are ``uncertainties`` numbers in bytes, correlated with one another, NaN where the
    launches do not identify them (``reasons`` says why). ``model_headroom`` = A - a1 and
    ``sampler_headroom`` = A - a2 are known without A where the pool was printed; ``left_over`` is
    A + G = TM*U - M - N. ``kv_per_token`` is kappa; where layers of several kinds share the pool it
    (``hybrid``) it is unknown, and ``request_cost`` takes its place. ``graph_charge`` is G.
    """

    route: str | None
    k1: UFloat
    a1: UFloat
    k2: UFloat
    a2: UFloat
    k: UFloat
    k_source: str
    model_headroom: UFloat
    sampler_headroom: UFloat
    left_over: UFloat
    kv_per_token: UFloat
    request_cost: RequestCost | ConfiguredCost | None
    graph_charge: float
    block_size: int
    launches: tuple[FittedLaunch, ...]
    unit: float
    chi2: float
    dof: int
    reasons: dict[str, str] = field(default_factory=dict)
    next_launches: tuple[NextLaunch, ...] = ()
    notices: tuple[Notice, ...] = ()
    hybrid: bool = False

    def pools(self, seqs, tokens) -> tuple[UFloat, UFloat]:
        """Pool in bytes that the model run and that the sampler run would leave at (C, B)."""
        model = self.model_headroom - self.graph_charge - model_run(tokens, self.k1, 0)
        sampler = (
            self.sampler_headroom
            - self.graph_charge
            - sampler_run(tokens, seqs, self.k2, 0, self.k)
        )
        return model, sampler

    def pool(self, seqs, tokens) -> UFloat:
        """KV(B, C) = A - G - P(B, C), bytes: the smaller of the two pools."""
        return min(self.pools(seqs, tokens), key=lambda pool: pool.n)

    def request_forms(self, length: int) -> list[list[tuple[UFloat, UFloat]]]:
        """What a request of ``length`` tokens takes at B = 0 and more with each token of B; bytes.

        For each law that holds, its forms: a request takes the least of them. Empty where the
        launches do not tell it.
        """
        if not self.hybrid:
            return [[(self.kv_per_token * length, exact(0))]] * is_known(self.kv_per_token)
        return self.request_cost.forms(length) if self.request_cost else []

    def request_bytes(self, length: int, budget: int) -> float:
        """Bytes of a full request beside a budget of B; the dearest of the laws that hold."""
        return max(
            min((fixed + more * budget).n for fixed, more in forms)
            for forms in self.request_forms(length)
        )

    def to_dict(self) -> dict:
        """JSON of ``fit``: bytes, null where unknown."""
        names = ("k1", "a1", "k2", "a2", "k")
        return {
            **{name: nominal(getattr(self, name)) for name in names},
            "stderr": {name: stderr(getattr(self, name)) for name in names},
            "k_source": self.k_source,
            "request_cost": self.request_cost and self.request_cost.to_dict(),
            "route": self.route,
            "chi2": self.chi2,
            "degrees_of_freedom": self.dof,
            "reasons": self.reasons,
            "launches": [
                {
                    "source": fitted.launch.source,
                    "max_num_seqs": fitted.launch.max_num_seqs,
                    "max_num_batched_tokens": fitted.launch.max_num_batched_tokens,
                    "branch": fitted.branch,
                    "peak_activation_predicted_gib": in_gib(fitted.peak_activation),
                    "kv_cache_predicted_gib": in_gib(fitted.kv_cache),
                    "residual_gib": in_gib(fitted.residual),
                }
                for fitted in self.launches
            ],
            "next_launches": [vars(launch) for launch in self.next_launches],
            "warnings": list(dict.fromkeys(notice.name for notice in self.notices)),
        }


def in_gib(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value / GIB


def fit_memory_model(launches: list[Launch], shape: Shape | None = None) -> MemoryModel:
    """Fit the memory model to any number of launches.

    shape: what config.json says of the model (k, kappa), used where the launches alone do not tell.
    Raises InputError where launches contradict each other; what they cannot tell is NaN, with the
    reason and the next launch that would.
    """
    used, notices = _usable(launches)
    if not used:
        return _nothing(notices)
    hybrid = is_hybrid(used, shape)
    notices += [*check_launches(used, hybrid), *explained(used, ABOUT_THE_ANSWER)]
    kappa, disagreement = (UNKNOWN, None) if hybrid else kv_per_token(used, shape)
    notices += [disagreement] if disagreement else []
    block_size = first_known(used, "block_size", 16)
    corrections, errors = corrections_to_pool(used, notices)
    hidden = shape.hidden_state_bytes if shape else None
    solved = [
        _solve(
            route,
            fit_branches(route.readings, hidden / route.scale.n if hidden else None),
            hidden,
            used,
            corrections,
            kappa,
            block_size,
        )
        for route in routes(used, kappa, block_size, corrections, errors)
    ]
    if not solved:
        return _nothing(
            notices,
            "kv_cache_tokens alone does not tell bytes: "
            + (
                "needs kv_cache_gib in each launch"
                if hybrid
                else "give --config config.json, or kv_cache_gib in one launch"
            ),
        )
    best = min(solved, key=_uncertainty)
    if hybrid:
        cost, disagreement = cost_of_request(used, shape, block_size)
        notices += [disagreement] if disagreement else []
        best = replace(best, hybrid=True, request_cost=cost)
    return _explain(best, notices)


def _usable(launches: list[Launch]) -> tuple[list[Launch], list[Notice]]:
    """Launches with B, C and a reading. C may be unknown where it is unknown in all of them."""
    known_seqs = any(launch.max_num_seqs for launch in launches)
    used, notices = [], []
    for launch in launches:
        lacking = [
            name
            for name in KNOBS
            if getattr(launch, name) is None and (known_seqs or name != "max_num_seqs")
        ]
        remedy = ", which a log names where it is given as a flag" if lacking else ""
        if (launch.peak_activation, launch.kv_cache, launch.kv_cache_tokens) == (None,) * 3:
            lacking.append("any of peak_activation_gib, kv_cache_gib and kv_cache_tokens")
        if launch.status == "failed" and lacking:
            notices.append(
                Notice(
                    "launch_not_used",
                    f"{launch.where}: not used, because it failed: "
                    f"{launch.error or 'no reason given'}",
                )
            )
        elif not_measured := {"profiling_skipped", "blocks_overridden"} & set(launch.warnings):
            notices.append(
                Notice(
                    "launch_not_used",
                    f"{launch.where}: not used, because its pool "
                    f"was set by hand ({', '.join(not_measured)}).",
                )
            )
        elif lacking:
            notices.append(
                Notice(
                    "launch_not_used",
                    f"{launch.where}: not used, because it lacks {' and '.join(lacking)}{remedy}.",
                )
            )
        else:
            used.append(launch)
    return used, notices


def _nothing(
    notices,
    reason="no launch can be used: each needs max_num_seqs, "
    "max_num_batched_tokens and one of peak_activation_gib, kv_cache_gib, "
    "kv_cache_tokens",
) -> MemoryModel:
    return MemoryModel(
        None,
        *[UNKNOWN] * 5,
        "unknown",
        *[UNKNOWN] * 4,
        None,
        0.0,
        16,
        (),
        0.0,
        0.0,
        0,
        dict.fromkeys(("k1", "a1", "k2", "a2", "k"), reason),
        (),
        tuple(notices),
    )


def _uncertainty(model: MemoryModel) -> tuple:
    """Routes in order: most identified first, then the smaller relative error of the slopes."""
    unknown = sum(
        not is_known(value)
        for value in (model.k1, model.k2, model.model_headroom, model.sampler_headroom)
    )
    return unknown, sum(
        abs(slope.s / slope.n) for slope in (model.k1, model.k2) if is_known(slope) and slope.n
    )


def _solve(
    route: Route, fit: BranchFit, hidden: float | None, used, corrections, kappa, block_size
) -> MemoryModel:
    """Parameters with one covariance, in bytes, and what they leave for the pool."""
    refuse_falling_peaks(route, fit)
    n = len(route.launches)
    scale_up = max(1.0, fit.chi2 / fit.dof) if fit.dof > 0 else 1.0
    gains, held = {}, {}
    for branch, which in ((fit.model_branch, ~fit.sampler), (fit.sampler_branch, fit.sampler)):
        if branch:
            for row, name in enumerate(branch.names):
                key = (
                    name
                    if name != "level"
                    else ("model" if branch is fit.model_branch else "sampler") + "_level"
                )
                gains[key] = np.zeros(n)
                gains[key][which] = branch.fit.gain[row]
                held[key] = branch.fit.params[row]
    variance = route.readings.sigma**2 * scale_up
    values = {**dict.fromkeys(("k1", "a1", "k2", "a2"), UNKNOWN), "k": UNKNOWN}
    budget, budget_gain, budget_variance = _budget(route, used, corrections)
    names = [*gains, "budget"]
    rows = np.array([*gains.values(), budget_gain])
    covariance = (rows * variance) @ rows.T
    covariance[-1, -1] += budget_variance
    if math.isnan(budget):
        names, covariance = names[:-1], covariance[:-1, :-1]
    fitted = correlated_values([*held.values(), budget][: len(names)], covariance)
    values |= {
        name: value if name == "budget" else value * route.scale
        for name, value in zip(names, fitted)
    }
    left_over = values.pop("budget", UNKNOWN)
    if fit.k_fitted:
        k_source = "fitted"
    else:
        k_source = "config" if hidden else "assumed 0"
        values["k"] = exact(hidden or 0.0)
    if route.name == "peak_activation":
        headroom = left_over - values["a1"], left_over - values["a2"]
    else:
        headroom = -values["a1"], -values["a2"]
        values["a1"], values["a2"] = left_over + values["a1"], left_over + values["a2"]
    return MemoryModel(
        route.name,
        *(values[name] for name in ("k1", "a1", "k2", "a2", "k")),
        k_source,
        *headroom,
        left_over,
        kappa,
        None,
        max(launch.graph_charge for launch in used),
        block_size,
        _fitted_launches(route, fit, left_over.n, dict(zip(map(id, used), corrections))),
        float(route.readings.units.max() * route.scale.n),
        fit.chi2,
        fit.dof,
    )


def _fitted_launches(route: Route, fit: BranchFit, left_over: float, corrections: dict[int, float]):
    """Branch, predicted peak and pool, and measured - predicted in the route's own quantity."""
    predicted, measured = fit.predicted * route.scale.n, route.readings.y * route.scale.n
    if route.name == "peak_activation":
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
        for i, launch in enumerate(route.launches)
    )


def _budget(route: Route, used, corrections) -> tuple[float, np.ndarray, float]:
    """A + G, its dependence on the route's readings, and the variance of its other terms.

    The mean of KV + P + G where both are printed (it is what vLLM really divided), else
    TM*U - M - N; NaN where neither is known.
    """
    n = len(route.launches)
    peak, kv = column(used, "peak_activation"), column(used, "kv_cache")
    both = np.isfinite(peak) & np.isfinite(kv)
    if both.any():
        total = float(np.mean((peak + kv + corrections)[both]))
        variances = rounding(kv) ** 2
        gain = np.zeros(n)
        if route.name == "peak_activation":
            mine = [i for i, launch in enumerate(used) if np.isfinite(peak[i])]
            gain[:] = both[mine] / both.sum()
        else:
            variances += rounding(peak) ** 2
        return total, gain, float(np.sum(variances[both])) / both.sum() ** 2
    terms = [column(used, name) for name in ("total_memory", "model_weights", "non_torch")]
    utilization = column(used, "gpu_memory_utilization")
    whole = terms[0] * utilization - terms[1] - terms[2]
    if not np.isfinite(whole).any():
        return math.nan, np.zeros(n), 0.0
    variance = sum(
        (rounding(term) * factor) ** 2 for term, factor in zip(terms, (utilization, 1, 1))
    )
    return float(np.nanmean(whole)), np.zeros(n), float(np.nanmean(variance))


def _finite(value) -> float | None:
    return float(value) if math.isfinite(value) else None


def _explain(model: MemoryModel, notices: list[Notice]) -> MemoryModel:
    """Slopes within their rounding become unknown; each unknown gets a reason and a next launch."""
    reasons = within_rounding(model)
    for slope, intercept, headroom in (
        ("k1", "a1", "model_headroom"),
        ("k2", "a2", "sampler_headroom"),
    ):
        if slope in reasons or not is_known(getattr(model, slope)):
            model = replace(model, **dict.fromkeys((slope, intercept, headroom), UNKNOWN))
    reasons = missing_reasons(model) | reasons
    if model.k_source == "assumed 0" and any(f.branch == "sampler" for f in model.launches):
        notices = [
            *notices,
            Notice(
                "hidden_states_unknown",
                "k, the hidden states kept while the sampler runs, is taken as "
                "0 in the fit: the launches do not tell it. The recommendation keeps room for up to "
                "16 KiB a token. Give --config config.json (hidden size x bytes).",
            ),
        ]
    if not any(fitted.launch.block_size for fitted in model.launches):
        notices = [
            *notices,
            Notice(
                "block_size_assumed",
                "No launch gives block_size: 16 tokens is taken, vLLM's default. "
                "With larger blocks a request takes more, and the answer can be too high.",
            ),
        ]
    return replace(
        model,
        reasons=reasons,
        next_launches=tuple(next_launches(model)),
        notices=(*notices, *poor_fit(model), *repeats_differ(model)),
    )
