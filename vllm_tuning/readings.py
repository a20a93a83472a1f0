"""What launches say about P: the readings of each route, their rounding, and kappa.

``peak_activation`` reads the printed P. ``kv_only`` reads the printed pool: since KV = A - P,
differences of KV are differences of -P, and neither P nor N is needed. The KV cache size in tokens
times the bytes of a token is usually the finest reading of the pool.
"""

import math
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, ufloat

from .branches import Readings
from .checks import kv_per_token_interval
from .kv_cache import Shape
from .launches import Launch, Notice
from .uncertain import UNKNOWN, exact, is_known
from .units import printed_half_width

ROOT3 = math.sqrt(3)  # a rounding error of +- h has the standard error h / sqrt(3)


@dataclass(frozen=True)
class Route:
    """Readings of one route; ``scale`` bytes per unit of y (kappa where y is in tokens)."""

    name: str
    launches: list[Launch]
    readings: Readings
    scale: UFloat


def column(launches, name) -> np.ndarray:
    return np.array([math.nan if (value := getattr(launch, name)) is None else value
                     for launch in launches], dtype=float)


def rounding(values: np.ndarray) -> float:
    """Half of the printed unit of a column, bytes; 0 where the column is empty."""
    known = values[np.isfinite(values)]
    return printed_half_width(known) if len(known) else 0.0


def corrections_to_pool(launches: list[Launch], notices: list[Notice]) -> tuple[np.ndarray, float]:
    """What must be added to each printed pool to compare it: G, and N above its median.

    N enters only where it differs by more than its rounding (another process on the GPU).
    """
    charges = np.array([launch.graph_charge for launch in launches])
    error = rounding(charges) if np.ptp(charges) else 0.0
    if any(notice.name == "non_torch_differs" for notice in notices):
        non_torch = column(launches, "non_torch")
        usual = np.nanmedian(non_torch)
        error = math.hypot(error, rounding(non_torch))
        charges = charges + np.where(np.isfinite(non_torch), non_torch - usual, 0.0)
    return charges, error / ROOT3


def kv_per_token(launches: list[Launch], shape: Shape | None) -> tuple[UFloat, Notice | None]:
    """kappa, bytes per token: where the printed intervals of KV/KVS meet, or from the config."""
    kv = column(launches, "kv_cache")
    half_width = rounding(kv)
    bounds = [interval for launch in launches
              if (interval := kv_per_token_interval(launch, half_width))]
    known = shape.kv_bytes_per_token if shape else None
    if not bounds:
        return (exact(known) if known else UNKNOWN), None
    lows, highs = np.array(bounds).T
    low, high = lows.max(), highs.min()
    if known and low * (1 - 1e-6) <= known <= high * (1 + 1e-6):
        return exact(known), None
    if low > high:
        middle = (lows + highs) / 2
        weights = (highs - lows) ** -2
        estimate = ufloat(np.average(middle, weights=weights),
                          max(np.std(middle), (highs - lows).min() / 2 / ROOT3))
    else:
        estimate = ufloat((low + high) / 2, (high - low) / 2 / ROOT3)
    notice = Notice("config_disagrees",
                    f"config.json gives {known:,.0f} bytes of KV cache a token, the launches "
                    f"{estimate.n:,.0f}: the launches are used.") if known else None
    return estimate, notice


def routes(launches: list[Launch], kappa: UFloat, block_size: int, corrections,
           correction_error: float) -> list[Route]:
    """The readings of P and of the pool, those of them that the launches hold."""
    tokens = column(launches, "max_num_batched_tokens")
    seqs = np.nan_to_num(column(launches, "max_num_seqs"), nan=1.0)  # unknown is the same in all
    peak, kv = column(launches, "peak_activation"), column(launches, "kv_cache")
    size = column(launches, "kv_cache_tokens")

    def route(name, y, half_width, error, scale):
        which = np.isfinite(y)
        if not which.any():
            return None
        readings = Readings(tokens[which], seqs[which], y[which],
                            np.full(which.sum(), math.hypot(half_width / ROOT3, error)),
                            2 * half_width)
        return Route(name, [launches[i] for i in np.flatnonzero(which)], readings, scale)

    by_peak = route("peak_activation", peak, rounding(peak), 0.0, exact(1))
    half_block = block_size / 2
    if is_known(kappa) and np.isfinite(size).all() and (
            not np.isfinite(kv).any() or half_block * kappa.n < rounding(kv)):
        # a floor to whole blocks: the pool held half a block more on average
        by_kv = route("kv_only", -(size + half_block + corrections / kappa.n), half_block,
                      correction_error / kappa.n, kappa)
    else:
        by_kv = route("kv_only", -(kv + corrections), rounding(kv), correction_error, exact(1))
    return [found for found in (by_peak, by_kv) if found]
