"""What launches say about P: the readings of P and of the pool, their errors, and kappa.

``peak_activation`` reads the printed P. ``kv_only`` reads the printed pool: since KV = A - P,
differences of KV are differences of -P, and neither P nor N is needed. The KV cache size in tokens
times the bytes of a token is usually the finest reading of the pool.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from uncertainties import UFloat, ufloat

from .launch import Launch, column
from .law import bend
from .releases import captured_sizes, counts_consumed_memory
from .units import MIB, UNKNOWN, exact, is_known, printed_half_widths

ROOT3 = math.sqrt(3)  # a rounding error of +- h has the standard error h / sqrt(3)
GRANULE, EXACT_GRANULE = 2 * MIB, 512  # bytes that a GPU, and that torch hands out memory by
LAW = 3  # granules that launches of real GPUs are off the law, root mean square: 6 MiB


@dataclass(frozen=True)
class Readings:
    """What a fit sees of each launch: B, C, U above that of the answer, and y = P + a constant.

    y in bytes, with its standard error as printed, that about the law (``sigma``), and the printed
    unit of each. Launches of equal flags share the weight of one, so that a launch read twice
    counts once.
    """

    tokens: np.ndarray
    seqs: np.ndarray
    moved: np.ndarray
    y: np.ndarray
    printed: np.ndarray
    sigma: np.ndarray
    units: np.ndarray

    @cached_property
    def requests(self) -> np.ndarray:
        return np.minimum(self.seqs, self.tokens)

    @cached_property
    def repeats(self) -> np.ndarray:
        """How many launches have the flags of each."""
        flags = self.tokens * 2**18 + self.seqs + self.moved
        _, which, counts = np.unique(flags, return_inverse=True, return_counts=True)
        return counts[which]

    @cached_property
    def weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """``sigma`` and ``printed`` as those of a launch that shares its flags' weight."""
        root = np.sqrt(self.repeats)
        return self.sigma * root, self.printed * root

    @cached_property
    def sizes(self) -> np.ndarray:
        """Batch sizes that CUDA graphs are captured for at the C of each."""
        return captured_sizes(self.seqs)

    @cached_property
    def bent(self) -> np.ndarray:
        """What the sorting sampler's cost of few requests goes by."""
        return bend(self.requests)

    @cached_property
    def distinct(self) -> int:
        """Launches of different flags."""
        return round(float(np.sum(1 / self.repeats)))

    def subset(self, which) -> "Readings":
        return Readings(*(getattr(self, item.name)[which] for item in fields(self)))


@dataclass(frozen=True)
class Measurement:
    """Readings of P, or of the pool. ``scale``: 1 with the relative error of kappa in y."""

    name: str
    launches: list[Launch]
    readings: Readings
    scale: UFloat


def rounding(values: np.ndarray) -> np.ndarray:
    """Standard errors that the printed rounding of a column leaves, bytes; NaN for NaN."""
    return printed_half_widths(values) / ROOT3


def granule(launch: Launch) -> int:
    """Bytes that memory is handed out by: no reading of the launch is better."""
    return EXACT_GRANULE if launch.exact else GRANULE


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

    G; and where N is what torch did not allocate, N above its median (another process). Where it
    comes from the consumed memory, N holds what the flags themselves keep, and is a part of P.
    """
    charges = column(launches, "graph_charge")
    errors = rounding(charges) if np.ptp(charges) else np.zeros(len(launches))
    if any(odd_ones(launches, "non_torch")) and not consumed(launches):
        non_torch = column(launches, "non_torch")
        above = np.nan_to_num(non_torch - np.nanmedian(non_torch))
        charges, errors = charges + above, np.hypot(errors, np.nan_to_num(rounding(non_torch)))
    return charges, errors


def consumed(launches: list[Launch]) -> bool:
    """Whether N holds all that stays allocated, the runner's state and workspaces too."""
    return any(
        launch.model_runner == "V2" or counts_consumed_memory(launch.vllm_version)
        for launch in launches
    )


def kv_per_token_intervals(launches: list[Launch]) -> list[tuple[Launch, tuple[float, float]]]:
    """Bounds of KV / KVS, bytes, where both are known: KV is rounded, KVS a floor to blocks."""
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    return [
        (
            launch,
            (
                (launch.kv_cache - half) / (launch.pool_tokens + (launch.block_size or 16)),
                (launch.kv_cache + half) / launch.pool_tokens,
            ),
        )
        for launch, half in zip(launches, half_widths, strict=True)
        if launch.kv_cache is not None and launch.pool_tokens and launch.kv_cache > 0
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
    launches: list[Launch], kappas: dict[str | None, UFloat], utilization: float | None
) -> list[Measurement]:
    """The readings of P and of the pool, those of them that the launches hold.

    kappas: bytes of a token by KV cache dtype, NaN where unknown; utilization: U of the answer.
    """
    tokens = column(launches, "max_num_batched_tokens")
    seqs = np.nan_to_num(column(launches, "max_num_seqs"), nan=1.0)  # unknown is the same in all
    moved = np.nan_to_num(column(launches, "gpu_memory_utilization") - (utilization or 0.0))
    peak, kv = column(launches, "peak_activation"), column(launches, "kv_cache")
    steps = np.array([granule(launch) for launch in launches])

    def measurement(name, y, half_widths, errors, moved, scale):
        which = np.isfinite(y)
        if not which.any():
            return None
        printed = np.sqrt((half_widths**2 + (steps / 2) ** 2) / 3 + errors**2)
        sigma = np.hypot(printed, LAW * steps)
        readings = Readings(tokens, seqs, moved, y, printed, sigma, 2 * half_widths).subset(which)
        return Measurement(name, [launches[i] for i in np.flatnonzero(which)], readings, scale)

    corrections, errors = corrections_to_pool(launches)
    zero = np.zeros(len(peak))
    by_peak = measurement("peak_activation", peak, printed_half_widths(peak), zero, zero, exact(1))
    pool, half_widths = kv, printed_half_widths(kv)
    kappa = [kappas.get(launch.kv_cache_dtype, UNKNOWN) for launch in launches]
    scale, several = exact(1), len(set(map(id, kappa))) > 1
    by_tokens = [
        (
            (size + block / 2) * each.n,
            math.hypot(block / 2 * each.n, ROOT3 * each.s * size if several else 0.0),
        )
        if (size := launch.pool_tokens) is not None and is_known(each)
        else (math.nan, math.inf)
        for launch, each in zip(launches, kappa, strict=True)
        for block in [launch.block_size or 16]
    ]
    finer = np.array([half for _, half in by_tokens]) < np.nan_to_num(half_widths, nan=math.inf)
    if several or finer.all():  # a floor to whole blocks: the pool held half a block more
        pool, half_widths = (
            np.where(finer, part, printed)
            for part, printed in zip(np.array(by_tokens).T, (kv, half_widths), strict=True)
        )
        scale = exact(1) if several else kappa[0] / kappa[0].n
    by_kv = measurement("kv_only", -(pool + corrections), half_widths, errors, moved, scale)
    return [found for found in (by_kv, by_peak) if found]
