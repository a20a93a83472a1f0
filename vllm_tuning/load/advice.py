"""What to change and by how much, in tokens and in flags: from the pool and what requests took."""

import math

import numpy as np

from ..answer import find_optimum
from ..budget import equivalent_utilization
from ..launch import serve_flags
from ..reading import Window
from ..units import GIB
from ..workload import Workload, at_percentile, largest
from .server import ServedPool, Server

PEAK_LIMIT = 0.90


HIGHEST_UTILIZATION = 0.98  # above it other users of the GPU find no room


def observed_request(window: Window) -> Workload | None:
    """The request whose length 95 % of those finished did not exceed; None where none finished."""
    return at_percentile(window.lengths) if window.lengths else None


def longest_length(window: Window) -> float | None:
    """Tokens that no finished request exceeded, by the ends of the histograms; inf if open."""
    ends = [
        each and each.quantile(1.0)
        for each in map(window.histogram, ("prompt_length", "output_length"))
    ]
    return None if None in ends else sum(ends)


def against_preemption(window: Window, server: Server) -> str:
    """Flags at which requests of the observed length all fit, and the pool they would need."""
    pool, request = server.pool(window), observed_request(window)
    seqs = server.max_num_seqs or round(window.peak("running") or 0)
    if request is None or pool is None:
        lacking = (
            "no finished request tells the length"
            if request is None
            else "the pool is not known in tokens"
        )
        return (
            "lower --max-num-seqs, or give the KV cache more memory; by how much is not known: "
            f"{lacking}"
        )
    fit, length = pool.requests(request.length), f"{request.length:,} tokens"
    what = f"requests of the observed p95 length ({length})"
    if fit < 1:
        return (
            f"not one request of the observed p95 length ({length}) fits the pool of "
            f"{pool.usable * pool.block_size:,} tokens: give the KV cache more memory"
        )
    more = _by_the_model(server, request, seqs)
    if (missing := seqs * request.blocks(pool.block_size) - pool.usable) > 0:
        more += f"; or add {_room(missing, pool, server)}"
    if seqs and seqs <= fit:
        fit, what, more = _for_the_longest(window, pool, seqs)
        if fit is None:
            return what
    from_to = f"from {seqs} to {fit}" if server.max_num_seqs else f"to {fit} or less"
    return (
        f"lower --max-num-seqs {from_to}: the pool of {pool.usable * pool.block_size:,} tokens "
        f"holds {fit} {what}" + f", {seqs} do not fit" * bool(seqs) + more
    )


def _for_the_longest(window: Window, pool: ServedPool, seqs: int):
    longest = longest_length(window)
    fit = pool.requests(int(longest)) if longest and math.isfinite(longest) else 0
    if 0 < fit < seqs:
        return fit, f"requests of the longest length observed (at most {longest:,.0f} tokens)", ""
    return (
        None,
        (
            f"{seqs} requests of the observed p95 length fit: some are longer, or another "
            "cause takes blocks; lower --max-num-seqs step by step, or give the KV cache "
            "more memory"
        ),
        "",
    )


def _by_the_model(server: Server, request: Workload, seqs: int) -> str:
    """The launches' own answer; one that admits more than preempted is of another server."""
    best = server.model and find_optimum(server.model, request).recommended
    return (
        (
            "; by the launches, which know how the pool moves: "
            + serve_flags(best.max_num_seqs, best.max_num_batched_tokens)
        )
        if best and best.max_num_seqs < seqs
        else ""
    )


def _room(blocks: int, pool: ServedPool, server: Server) -> str:
    """So many blocks in tokens; where the log tells their bytes, in GiB and utilization."""
    tokens, launch = blocks * pool.block_size, server.launch
    said = f"{tokens:,} tokens to the pool"
    if not pool.token_bytes:
        return said + " (utilization, fp8 KV cache, another GPU)"
    said += f" ({tokens * pool.token_bytes / GIB:.2f} GiB"
    if launch.total_memory and launch.gpu_memory_utilization:
        ceiling = equivalent_utilization(
            launch.gpu_memory_utilization, tokens * pool.token_bytes, launch.total_memory
        )
        ceiling = math.ceil(ceiling * 1000) / 1000
        return said + (
            f", --gpu-memory-utilization {ceiling:g})"
            if ceiling <= HIGHEST_UTILIZATION
            else ": more than utilization can give; fp8 KV cache or another GPU)"
        )
    return said + ")"


def against_a_full_pool(window: Window, server: Server) -> str:
    """The number of requests that stays under the limit, by what those at the peak held; of one
    engine."""
    pool, usage = server.pool(window), window.total("kv_cache_usage")
    at = int(np.nanargmax(usage))
    running, peak, parts = window.total("running")[at], float(usage[at]), []
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
