"""What to change and by how much, in tokens and in flags: from the pool and what requests took."""

import math

import numpy as np

from ..budget import equivalent_utilization
from ..optimum import solve
from ..reading import ScrapeSeries
from ..units import GIB
from ..workload import Workload, at_percentile, largest
from .server import ServedPool, ServingLaunch

PEAK_LIMIT = 0.90
HIGHEST_UTILIZATION = 0.98  # above it other users of the GPU find no room


def observed_request(series: ScrapeSeries) -> Workload | None:
    """The request whose length 95 % of those finished did not exceed; None where none finished."""
    return at_percentile(series.lengths) if series.lengths else None


def longest_length(series: ScrapeSeries) -> int | None:
    """Tokens that no finished request exceeded, by the ends of the histograms; None if unknown."""
    longest = 0.0
    for name in ("prompt_length", "output_length"):
        lengths = series.histogram(name)
        longest += (lengths and lengths.quantile(1.0)) or math.inf
    return int(longest) if math.isfinite(longest) else None


def what_is_lacking(request: Workload | None) -> str:
    """Why it is not known how many requests fit."""
    return "the pool is not known in tokens" if request else "no finished request tells the length"


def against_preemption(series: ScrapeSeries, server: ServingLaunch) -> str:
    """Flags at which requests of the observed length all fit, and the pool they would need."""
    pool, request = server.pool(series), observed_request(series)
    seqs = server.max_num_seqs or round(series.peak("running") or 0)
    if request is None or pool is None:
        return (
            "lower --max-num-seqs, or give the KV cache more memory; by how much is not known: "
            + what_is_lacking(request)
        )
    fit, of_them = pool.requests(request.length), f"observed p95 length ({request.length:,} tokens)"
    if fit < 1:
        return (
            f"not one request of the {of_them} fits the pool of {pool.usable_tokens:,} tokens: "
            "give the KV cache more memory"
        )
    more = _by_the_model(server, request, seqs)
    if (missing := seqs * request.blocks(pool.block_size) - pool.usable) > 0:
        more += f"; or add {_room(missing, pool, server)}"
    if 0 < seqs <= fit:
        longest = longest_length(series)
        fit = pool.requests(longest) if longest else 0
        if not 0 < fit < seqs:
            return (
                f"{seqs} requests of the observed p95 length fit: some are longer, or another "
                "cause takes blocks; lower --max-num-seqs step by step, or give the KV cache "
                "more memory"
            )
        of_them, more = f"longest length observed (at most {longest:,} tokens)", ""
    return (
        "lower --max-num-seqs "
        + (f"from {seqs} to {fit}" if server.max_num_seqs else f"to {fit} or less")
        + f": the pool of {pool.usable_tokens:,} tokens holds {fit} requests of the {of_them}"
        + f", {seqs} do not fit" * bool(seqs)
        + more
    )


def _by_the_model(server: ServingLaunch, request: Workload, seqs: int) -> str:
    """The launches' own answer; one that admits more than preempted is of another server."""
    best = solve(server.model, request).recommended if server.model else None
    if best is None or best.max_num_seqs >= seqs:
        return ""
    return f"; by the launches, which know how the pool moves: {best.flags}"


def _room(blocks: int, pool: ServedPool, server: ServingLaunch) -> str:
    """So many blocks in tokens; where the log gives their bytes, in GiB and utilization."""
    tokens, launch = blocks * pool.block_size, server.launch
    text = f"{tokens:,} tokens to the pool"
    if not pool.token_bytes or not launch:
        return f"{text} (utilization, fp8 KV cache, another GPU)"
    text += f" ({tokens * pool.token_bytes / GIB:.2f} GiB"
    if not (launch.total_memory and launch.gpu_memory_utilization):
        return f"{text})"
    ceiling = equivalent_utilization(
        launch.gpu_memory_utilization, tokens * pool.token_bytes, launch.total_memory
    )
    ceiling = math.ceil(ceiling * 1000) / 1000
    if ceiling > HIGHEST_UTILIZATION:
        return f"{text}: more than utilization can give; fp8 KV cache or another GPU)"
    return f"{text}, --gpu-memory-utilization {ceiling:g})"


def against_a_full_pool(series: ScrapeSeries, server: ServingLaunch) -> str:
    """The number of requests that stays under the limit, by what those at the peak held; of one
    engine."""
    pool, usage = server.pool(series), series.total("kv_cache_usage")
    at = int(np.nanargmax(usage))
    running, peak, parts = series.total("running")[at], float(usage[at]), []
    if running > 1:
        fewer = largest(lambda seqs: seqs * peak / running < PEAK_LIMIT)
        parts.append(
            f"lower --max-num-seqs to {fewer}: {running:,.0f} running requests held "
            f"{peak:.1%} of the pool"
            + (f", {peak * pool.usable / running:.1f} blocks each" if pool else "")
        )
    if pool:
        more = math.floor(peak * pool.usable / PEAK_LIMIT) + 1 - pool.usable
        parts.append(f"add {_room(more, pool, server)}")
    return "; or ".join(parts) or "admit fewer requests, or give the KV cache more memory"
