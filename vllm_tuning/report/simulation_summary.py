"""What a simulation comes to."""

from ..launch import serve_flags
from ..scheduler import Simulation, quantiles
from .summary import Paragraph, Summary, Table

_TIMES = {
    "given": "Times: every step takes the time given.",
    "lower bound of the step time": "Times: a bound from the GPU's data sheet. A real step "
    "takes longer.",
}


def simulation_summary(simulation: Simulation, unknown: str | None = None) -> Summary:
    """Steps, tokens per step, pool, preemptions, and the times or why they are ``unknown``."""
    config, found = simulation.config, simulation.summary
    again = found.recomputed_tokens / max(1, found.sched_tokens)
    scheduled = f"generated; {found.sched_tokens_per_step:,.1f} scheduled"
    pool = f"mean of the steps; at most {found.peak_pool_use:.1%}"
    lost = f"{found.recomputed_tokens:,} tokens computed again ({again:.1%} of all)"
    rows = [
        ("steps", found.n_steps, f"{found.idle_steps:,} of them idle"),
        ("tokens per step", f"{found.tokens_per_step:,.1f}", scheduled),
        ("requests at once", found.max_run, "at most"),
        ("pool use", f"{found.mean_pool_use:.1%}", pool),
        ("preemptions", found.n_preempt, lost),
    ]
    if config.enable_prefix_caching:
        rows.append(("prefix cache hits", found.hit_tokens, "tokens not computed"))
    clock = _TIMES[simulation.times.kind] if simulation.times else f"(no times: {unknown})"
    flags = serve_flags(config.max_num_seqs, config.max_num_batched_tokens)
    return Summary(
        Paragraph(f"{found.n_requests:,} requests, {flags}", "heading"),
        Paragraph(f"{found.usable_blocks:,} blocks of {config.block_size} tokens"),
        Table((), [*rows, *_times(simulation.times)]),
        Paragraph(clock),
    )


def _times(times) -> list[tuple[str, str, str]]:
    """Rows of throughput, TTFT and TPOT, each with what kind of figure it is."""
    if times is None or not times.duration:
        return []
    bound = times.kind.startswith("lower bound")
    most, least = (" at most", " at least") if bound else ("", "")
    rows = [("throughput", f"{times.throughput:,.0f}", f"tokens/s{most}")]
    for name, found, unit, factor, digits in (
        ("TTFT", times.ttft, "s", 1, 2),
        ("TPOT", times.tpot, "ms", 1000, 1),
    ):
        median, high = quantiles(found).values()
        if median is not None:
            said = f"{unit}{least} (median; 99th percentile {factor * high:,.{digits}f})"
            rows.append((name, f"{factor * median:,.{digits}f}", said))
    return rows
