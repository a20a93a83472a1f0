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
from .diagnosis import kv_per_token_intervals
from .kv_cache import Shape
from .launch import Launch, Notice, column
from .units import UNKNOWN, exact, is_known, printed_half_widths

ROOT3 = math.sqrt(3)  # a rounding error of +- h has the standard error h / sqrt(3)


@dataclass(frozen=True)
class Route:
    """Readings of one route; ``scale`` bytes per unit of y (kappa where y is in tokens)."""

    name: str
    launches: list[Launch]
    readings: Readings
    scale: UFloat


def rounding(values: np.ndarray) -> np.ndarray:
    """Standard errors that the printed rounding of a column leaves, bytes; NaN where it is empty."""
    return printed_half_widths(values) / ROOT3


def corrections_to_pool(
    launches: list[Launch], notices: list[Notice]
) -> tuple[np.ndarray, np.ndarray]:
    """What must be added to each printed pool to compare it, and its standard error, bytes each.

    G, and N above its median where it differs by more than its rounding (another process).
    """
    charges = column(launches, "graph_charge")
    errors = rounding(charges) if np.ptp(charges) else np.zeros(len(launches))
    if any(notice.name == "non_torch_differs" for notice in notices):
        non_torch = column(launches, "non_torch")
        above = np.nan_to_num(non_torch - np.nanmedian(non_torch))
        charges, errors = charges + above, np.hypot(errors, np.nan_to_num(rounding(non_torch)))
    return charges, errors


def kv_per_token(launches: list[Launch], shape: Shape | None) -> tuple[UFloat, Notice | None]:
    """kappa, bytes per token: where the printed intervals of KV/KVS meet, or from the config."""
    bounds = [interval for _, interval in kv_per_token_intervals(launches)]
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
        estimate = ufloat(
            np.average(middle, weights=weights),
            max(np.std(middle), (highs - lows).min() / 2 / ROOT3),
        )
    else:
        estimate = ufloat((low + high) / 2, (high - low) / 2 / ROOT3)
    notice = (
        Notice(
            "config_disagrees",
            f"config.json gives {known:,.0f} bytes of KV cache a token, the launches "
            f"{estimate.n:,.0f}: the launches are used.",
        )
        if known
        else None
    )
    return estimate, notice


def routes(
    launches: list[Launch], kappa: UFloat, block_size: int, corrections, correction_errors
) -> list[Route]:
    """The readings of P and of the pool, those of them that the launches hold."""
    tokens = column(launches, "max_num_batched_tokens")
    seqs = np.nan_to_num(column(launches, "max_num_seqs"), nan=1.0)  # unknown is the same in all
    peak, kv = column(launches, "peak_activation"), column(launches, "kv_cache")
    size = column(launches, "kv_cache_tokens")

    def route(name, y, half_widths, errors, scale):
        which = np.isfinite(y)
        if not which.any():
            return None
        readings = Readings(
            tokens[which],
            seqs[which],
            y[which],
            np.hypot(half_widths / ROOT3, errors)[which],
            2 * half_widths[which],
        )
        return Route(name, [launches[i] for i in np.flatnonzero(which)], readings, scale)

    by_peak = route("peak_activation", peak, printed_half_widths(peak), 0.0, exact(1))
    printed = printed_half_widths(kv)
    coarsest = printed[np.isfinite(printed)].max(initial=0.0) or math.inf
    half_block = block_size / 2
    if is_known(kappa) and np.isfinite(size).all() and half_block * kappa.n < coarsest:
        # a floor to whole blocks: the pool held half a block more on average
        by_kv = route(
            "kv_only",
            -(size + half_block + corrections / kappa.n),
            np.full(len(launches), half_block),
            correction_errors / kappa.n,
            kappa,
        )
    else:
        by_kv = route("kv_only", -(kv + corrections), printed, correction_errors, exact(1))
    return [found for found in (by_peak, by_kv) if found]
