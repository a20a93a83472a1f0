"""What launches say about P: the readings of P and of the pool, their rounding, and kappa.

``peak_activation`` reads the printed P. ``kv_only`` reads the printed pool: since KV = A - P,
differences of KV are differences of -P, and neither P nor N is needed. The KV cache size in tokens
times the bytes of a token is usually the finest reading of the pool.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, ufloat

from .branches import Readings
from .launch import Launch, column
from .units import UNKNOWN, exact, is_known, printed_half_widths

ROOT3 = math.sqrt(3)  # a rounding error of +- h has the standard error h / sqrt(3)


@dataclass(frozen=True)
class Measurement:
    """Readings of P, or of the pool; ``scale`` bytes per unit of y (kappa where y is in tokens)."""

    name: str
    launches: list[Launch]
    readings: Readings
    scale: UFloat


def rounding(values: np.ndarray) -> np.ndarray:
    """Standard errors that the printed rounding of a column leaves, bytes; NaN for NaN."""
    return printed_half_widths(values) / ROOT3


def odd_ones(launches: list[Launch], name: str) -> Iterator[tuple[Launch, float, float]]:
    """Launches whose printed figure is further from the median than rounding explains.

    Each with its figure and the median, bytes.
    """
    known = [(launch, value) for launch in launches if (value := getattr(launch, name)) is not None]
    if not known:
        return
    values = [value for _, value in known]
    usual = sorted(values)[len(values) // 2]
    units = 2 * printed_half_widths(values)
    allowed = np.maximum(units, units[values.index(usual)]) * (1 + 1e-6)
    for (launch, value), most in zip(known, allowed, strict=True):
        if abs(value - usual) > most:
            yield launch, value, usual


def corrections_to_pool(launches: list[Launch]) -> tuple[np.ndarray, np.ndarray]:
    """What must be added to each printed pool to compare it, and its standard error, bytes each.

    G, and N above its median where it differs by more than its rounding (another process).
    """
    charges = column(launches, "graph_charge")
    errors = rounding(charges) if np.ptp(charges) else np.zeros(len(launches))
    if any(odd_ones(launches, "non_torch")):
        non_torch = column(launches, "non_torch")
        above = np.nan_to_num(non_torch - np.nanmedian(non_torch))
        charges, errors = charges + above, np.hypot(errors, np.nan_to_num(rounding(non_torch)))
    return charges, errors


def kv_per_token_intervals(launches: list[Launch]) -> list[tuple[Launch, tuple[float, float]]]:
    """Bounds of KV / KVS, bytes, where both are known: KV is rounded, KVS a floor to blocks."""
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    return [
        (
            launch,
            (
                (launch.kv_cache - half) / (launch.kv_cache_tokens + (launch.block_size or 16)),
                (launch.kv_cache + half) / launch.kv_cache_tokens,
            ),
        )
        for launch, half in zip(launches, half_widths, strict=True)
        if launch.kv_cache is not None and launch.kv_cache_tokens and launch.kv_cache > 0
    ]


def kv_per_token(launches: list[Launch], known: float | None = None) -> UFloat:
    """kappa, bytes a token: where the printed intervals of KV/KVS meet; NaN if none is printed.

    known: kappa by config.json, taken where it lies within the intervals or none is printed.
    """
    bounds = [interval for _, interval in kv_per_token_intervals(launches)]
    if not bounds:
        return exact(known) if known else UNKNOWN
    lows, highs = np.array(bounds).T
    low, high = lows.max(), highs.min()
    if known and low * (1 - 1e-6) <= known <= high * (1 + 1e-6):
        return exact(known)
    if low > high:
        middle, widths = (lows + highs) / 2, highs - lows
        error = max(np.std(middle), widths.min() / 2 / ROOT3)
        return ufloat(np.average(middle, weights=widths**-2), error)
    return ufloat((low + high) / 2, (high - low) / 2 / ROOT3)


def measurements(
    launches: list[Launch], kappa: UFloat, block_size: int, corrections, correction_errors
) -> list[Measurement]:
    """The readings of P and of the pool, those of them that the launches hold."""
    tokens = column(launches, "max_num_batched_tokens")
    seqs = np.nan_to_num(column(launches, "max_num_seqs"), nan=1.0)  # unknown is the same in all
    peak, kv = column(launches, "peak_activation"), column(launches, "kv_cache")
    size = column(launches, "kv_cache_tokens")

    def measurement(name, y, half_widths, errors, scale):
        which = np.isfinite(y)
        if not which.any():
            return None
        sigma = np.hypot(half_widths / ROOT3, errors)
        readings = Readings(tokens, seqs, y, sigma, 2 * half_widths).subset(which)
        return Measurement(name, [launches[i] for i in np.flatnonzero(which)], readings, scale)

    half_peak = printed_half_widths(peak)
    by_peak = measurement("peak_activation", peak, half_peak, np.zeros(len(peak)), exact(1))
    printed = printed_half_widths(kv)
    coarsest = printed[np.isfinite(printed)].max(initial=0.0) or math.inf
    half_block = block_size / 2
    if is_known(kappa) and np.isfinite(size).all() and half_block * kappa.n < coarsest:
        # a floor to whole blocks: the pool held half a block more on average
        half_widths = np.full(len(launches), half_block)
        y = -(size + half_block + corrections / kappa.n)
        by_kv = measurement("kv_only", y, half_widths, correction_errors / kappa.n, kappa)
    else:
        by_kv = measurement("kv_only", -(kv + corrections), printed, correction_errors, exact(1))
    return [found for found in (by_peak, by_kv) if found]
