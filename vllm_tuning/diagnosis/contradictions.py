"""Checks across launches: what must be equal in one fit, and which launch breaks it.

A contradiction under which no answer is right (two releases, two models, two GPUs, another weight)
raises InputError; one under which an answer is still right gives a Notice.
"""

import math
from collections import Counter

import numpy as np

from ..launch import Launch, column, grouped, own_name, short_places
from ..memory_model import MemoryModel
from ..readings import consumed, kv_per_token_intervals, odd_ones
from ..units import GIB, InputError, is_known, printed_half_widths
from .explanations import Notice

_EXACT = {
    "vllm_version": "fit one release at a time, since each has its own sampler",
    "model": "fit one model at a time",
    "tensor_parallel_size": "fit one split at a time",
    "pipeline_parallel_size": "fit one split at a time",
    "model_runner": "fit one runner at a time",
}
_PRINTED = {
    "total_memory": "fit one GPU at a time",
    "model_weights": "fit one model and one quantization at a time",
}


def check_launches(
    launches: list[Launch], hybrid: bool = False, utilization: float | None = None
) -> list[Notice]:
    """Everything in section "what makes an answer valid" that the launches alone can show.

    hybrid: KV / KVS is no one number, since layers of several kinds share the pool; utilization:
    that of the answer, where it was asked for. Raises InputError naming file, line, column, the
    value and what the others say.
    """
    if not launches:
        raise InputError("no launches; give at least one row")
    for name, remedy in _EXACT.items():
        known = [launch for launch in launches if getattr(launch, name) is not None]
        alike = [
            own_name(str(launch.model)) if name == "model" else getattr(launch, name)
            for launch in known
        ]
        for usual, _ in Counter(alike).most_common(1):
            places = zip(known, alike, short_places(known), strict=True)
            agree = [place for _, each, place in places if each == usual]
            for launch, each in zip(known, alike, strict=True):
                if each != usual:
                    raise InputError(
                        f"{launch.where}: {name} is {getattr(launch, name)}, but {usual} in "
                        f"{_listed(agree)}; {remedy}"
                    )
    for name, remedy in _PRINTED.items():
        for launch, value, usual in odd_ones(launches, name):
            raise InputError(
                f"{launch.where}: {name}_gib is {value / GIB:g}, but the others say "
                f"{usual / GIB:g}; {remedy}"
            )
    _check_utilizations(launches, utilization)
    if not hybrid:
        for alike in grouped(launches, "kv_cache_dtype").values():
            _check_kv_per_token(alike)
    return [*_non_torch(launches), *_balance(launches), *_single_rows(launches)]


def of_one_kind(launches: list[Launch]) -> tuple[list[Launch], list[Notice]]:
    """The launches of one kind of start: warm ones where there are any, since those last.

    A cold start, in which the compiler ran, says how small the pool can be, not how it depends on
    the flags.
    """
    cold = [launch for launch in launches if launch.cold_start]
    if not cold:
        return launches, []
    flags = ", ".join(dict.fromkeys(f"{a.max_num_seqs}/{a.max_num_batched_tokens}" for a in cold))
    again = f"Start these flags (mns/mnbt) once more and keep the second log: {flags}."
    warm = [launch for launch in launches if launch.cold_start is False]
    if warm:
        return [launch for launch in launches if not launch.cold_start], [
            Notice(
                "cold_starts_left_out",
                f"{len(cold)} of {len(launches)} launches were cold starts, in which the compiler "
                f"ran: they are another kind of start and not used. {again}",
            )
        ]
    return launches, [
        Notice(
            "cold_start",
            "The compiler ran inside the profile of these launches (cold starts), and its peak "
            "hides that of the model: the answer holds for a first start, and a second one has a "
            f"larger pool. {again}",
        )
    ]


def cold_start_takes(launches: list[Launch]) -> float | None:
    """Bytes that a cold start leaves less than a warm one of equal flags, at most; None unknown."""
    same = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype")
    pools: dict[tuple, dict[bool, float]] = {}
    for launch in launches:
        if launch.kv_cache is not None and launch.cold_start is not None:
            flags = tuple(getattr(launch, name) for name in same)
            pools.setdefault(flags, {})[launch.cold_start] = launch.kv_cache
    return max((kv[False] - kv[True] for kv in pools.values() if len(kv) == 2), default=None)


def _check_utilizations(launches: list[Launch], asked: float | None) -> None:
    """Launches of several utilizations need the total memory, or three of them to give it."""
    known = {each for launch in launches if (each := launch.gpu_memory_utilization)}
    wanted = known | ({asked} if asked else set())
    given = any(launch.total_memory for launch in launches)
    if not given and len(wanted) > 1 and len(known) < 3:
        raise InputError(
            f"{launches[0].where}: the utilizations are {', '.join(map(str, sorted(wanted)))}, and "
            "no launch gives total_memory_gib: give the memory of one GPU by --gpu-memory, or "
            "launches at three utilizations"
        )


def _listed(places: list[str]) -> str:
    return (
        f"row{'s' * (len(places) > 1)} {', '.join(places[:6])}{' ...' if len(places) > 6 else ''}"
    )


def _check_kv_per_token(launches: list[Launch]) -> None:
    """kappa = KV / KVS is one number, unless max_model_len differs (hybrid models print it so)."""
    if len({launch.max_model_len for launch in launches} - {None}) > 1:
        return
    every = kv_per_token_intervals(launches)
    if not every:
        return
    usual = sorted((low + high) / 2 for _, (low, high) in every)[len(every) // 2]
    known = {interval: launch for launch, interval in reversed(every)}
    for (low, high), launch in known.items():
        if not low * (1 - 1e-9) <= usual <= high * (1 + 1e-9) and len(known) > 1:
            agree = [bounds for bounds, other in known.items() if other is not launch]
            if any(low <= other_high and other_low <= high for other_low, other_high in agree):
                continue
            raise InputError(
                f"{launch.where}: kv_cache_tokens is {launch.kv_cache_tokens:,} in "
                f"{(launch.kv_cache or 0) / GIB:g} GiB, {(low + high) / 2:,.0f} bytes a token, but "
                f"the others say {usual:,.0f}; was the number of blocks overridden, or the decode "
                "context parallel size changed? (Layers of several kinds: write hybrid_kv under "
                "warnings.)"
            )


def _non_torch(launches: list[Launch]):
    if consumed(launches):
        return  # N holds what the flags themselves keep
    for launch, value, usual in odd_ones(launches, "non_torch"):
        yield Notice(
            "non_torch_differs",
            f"{launch.where}: non_torch_gib is {value / GIB:g}, the others say "
            f"{usual / GIB:g}: another process on the GPU? The pool shrinks by as much.",
        )


def _balance(launches: list[Launch]):
    """TM*U - M - N - G - P = KV within the rounding of its terms, where all are given."""
    names = ("total_memory", "model_weights", "non_torch", "peak_activation", "kv_cache")
    charges = column(launches, "graph_charge")
    allowed = sum(
        (printed_half_widths(column(launches, name)) for name in names),
        np.where(charges > 0, printed_half_widths(charges), 0.0),
    )
    for launch, most in zip(launches, allowed, strict=True):
        left_over, peak, pool = launch.left_over, launch.peak_activation, launch.kv_cache
        if left_over is None or peak is None or pool is None:
            continue
        gap = left_over - peak - pool
        if abs(gap) > most * (1 + 1e-6):
            yield Notice(
                "balance_does_not_close",
                f"{launch.where}: total x utilization - weights - non_torch - graphs - "
                f"activation is {(pool + gap) / GIB:.2f} GiB, but kv_cache_gib "
                f"is {pool / GIB:g}: one of the figures counts something else.",
            )


def _single_rows(launches: list[Launch]):
    lengths = sorted({length for launch in launches if (length := launch.max_model_len)})
    if len(lengths) > 1:
        yield Notice(
            "max_model_len_differs",
            f"max_model_len is {', '.join(map(str, lengths))}: it moves the profile of "
            "releases without chunked prefill, and the tokens that hybrid models print.",
        )
    for launch in launches:
        seqs, tokens = launch.max_num_seqs, launch.max_num_batched_tokens
        if seqs and tokens and seqs > tokens:
            yield Notice(
                "mns_above_mnbt",
                f"{launch.where}: max_num_seqs {seqs} is above max_num_batched_tokens "
                f"{tokens}: the sampler runs on {tokens} requests, and vLLM refuses to "
                "serve so.",
            )
        if launch.kv_cache is not None and launch.kv_cache < 0:
            yield Notice(
                "negative_kv_cache",
                f"{launch.where}: kv_cache_gib is {launch.kv_cache / GIB:g}: nothing was "
                "left for the pool and the launch failed; the figure still measures P.",
            )
        elif launch.status == "failed":
            yield Notice(
                "failed_launch",
                f"{launch.where}: this launch failed ({launch.error or 'no reason given'})"
                "; the figures it printed before are used.",
            )


def refuse_falling_peaks(model: MemoryModel) -> None:
    """No law can hold where P falls by more than rounding while neither B nor C falls."""
    readings = model.readings
    assert readings is not None  # of a fit there are some
    launches = [fitted.launch for fitted in model.launches]
    residuals = np.abs([0.0 if f.left_out else f.residual for f in model.launches])
    total = model.total_memory.n if is_known(model.total_memory) else 0.0
    peaks = readings.y + total * readings.moved  # at one utilization
    allowed = max(3 * model.unit, 0.05 * np.ptp(peaks))
    if len(residuals) >= 10:
        allowed = max(allowed, 10 * np.median(residuals))  # noise of many launches is no fall
    if np.max(residuals) <= allowed / 2:
        return
    requests, tokens = readings.requests, readings.tokens
    order = np.lexsort((requests, tokens))
    for place, last in enumerate(order):
        before = order[:place]
        more = (requests[before] < requests[last]) | (tokens[before] < tokens[last])
        rises = (requests[before] <= requests[last]) & more
        higher = before[rises & (peaks[before] > peaks[last] + allowed)]
        if len(higher):
            low, high = launches[higher[0]], launches[last]
            raise InputError(
                f"{high.where}: the pool grows (the peak falls) from mns "
                f"{low.max_num_seqs or '?'}, mnbt {low.max_num_batched_tokens} ({low.where}) to "
                f"mns {high.max_num_seqs or '?'}, mnbt {high.max_num_batched_tokens}, but both "
                "only rise: not launches of one server, or a figure is in the wrong row"
            )
    if not math.isfinite(model.chi2):
        raise InputError(
            f"{launches[0].where}: no law that grows with max_num_seqs and "
            "max_num_batched_tokens fits this launch and those below it: not launches "
            "of one server, or a figure is in the wrong row"
        )
