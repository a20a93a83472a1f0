"""The four-launch method exactly as its source states it, over the printed P.

Group 1 varies max_num_seqs with a small token budget, group 2 varies max_num_batched_tokens with
few requests. The source knows no intercepts and no hidden states; ``optimum`` refines it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, ufloat

from .branches import SIGNIFICANT
from .launch import Launch, column
from .law import four_launch_point
from .least_squares import least_squares, scatter
from .memory_model import FittedLaunch
from .readings import rounding


@dataclass(frozen=True)
class FourLaunchEstimate:
    """The closed form over P; bytes and requests. ``reason`` names what the launches lack for it:

    left_over, kappa, k1_launches, k2_launches, k1_rounding, k2_rounding, or hybrid.
    """

    max_num_seqs: UFloat | None = None
    max_num_batched_tokens: UFloat | None = None
    k1: UFloat | None = None
    k2: UFloat | None = None
    a: UFloat | None = None
    kv_bytes_per_token: UFloat | None = None
    reason: str | None = None


def four_launch_estimate(fitted: Sequence[FittedLaunch], length: int) -> FourLaunchEstimate:
    """The closed form from the printed P, A and KV/KVS of the first launch of group 1.

    With two launches a group this is the four-launch expression; more launches enter through the
    least-squares slopes. Where P is not printed it is derived by the balance A - KV.
    """
    order = [
        f.launch
        for f in sorted(fitted, key=lambda f: (f.branch == "model", f.launch.max_num_seqs or 0))
    ]
    a = _first(order, _left_over)
    if a is None:
        return FourLaunchEstimate(reason="left_over")
    kappa = _first(order, _kappa)
    if kappa is None:
        return FourLaunchEstimate(reason="kappa")
    slopes = {}
    for name, branch, axis in (
        ("k1", "model", "max_num_batched_tokens"),
        ("k2", "sampler", "max_num_seqs"),
    ):
        slope = _slope_of_peak([f.launch for f in fitted if f.branch == branch], axis)
        if slope is None:
            return FourLaunchEstimate(reason=f"{name}_launches")
        if slope.n < SIGNIFICANT * slope.s:
            return FourLaunchEstimate(reason=f"{name}_rounding")
        slopes[name] = slope
    seqs, tokens = four_launch_point(a, kappa, **slopes, length=length)
    return FourLaunchEstimate(seqs, tokens, **slopes, a=a, kv_bytes_per_token=kappa)


def _first(launches: list[Launch], figure) -> UFloat | None:
    return next(
        (value for launch in launches if (value := figure(launch, launches)) is not None), None
    )


def _left_over(launch: Launch, launches: list[Launch]) -> UFloat | None:
    """A = TM*U - M - N - G, else by Equation 1 the sum KV + P; None where neither is printed."""

    def error(name):
        return rounding(column(launches, name))[launches.index(launch)]

    if launch.left_over is None:
        if launch.kv_cache is None or launch.peak_activation is None:
            return None
        return ufloat(
            launch.kv_cache + launch.peak_activation,
            math.hypot(*(error(name) for name in ("kv_cache", "peak_activation"))),
        )
    return ufloat(
        launch.left_over,
        math.hypot(
            error("total_memory") * launch.gpu_memory_utilization,
            error("model_weights"),
            error("non_torch"),
        ),
    )


def _kappa(launch: Launch, launches: list[Launch]) -> UFloat | None:
    if not launch.kv_cache or not launch.kv_cache_tokens or launch.kv_cache < 0:
        return None
    error = rounding(column(launches, "kv_cache"))[launches.index(launch)]
    return ufloat(launch.kv_cache, error) / launch.kv_cache_tokens


def _slope_of_peak(launches: list[Launch], axis: str) -> UFloat | None:
    peak = column(launches, "peak_activation")
    errors = rounding(peak)
    if not np.isfinite(peak).sum() >= 2:
        pool = column(launches, "kv_cache")
        peak, errors = column(launches, "left_over") - pool, rounding(pool)
    known = np.isfinite(peak)
    x = column(launches, axis)[known]
    if known.sum() < 2 or not np.ptp(x) > 0:
        return None
    fit = least_squares(np.column_stack([np.ones(len(x)), x]), peak[known], errors[known])
    return ufloat(fit.params[1], math.sqrt(fit.covariance[1, 1] * scatter(fit.chi2, fit.dof)))
