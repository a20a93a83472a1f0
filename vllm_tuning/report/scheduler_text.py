"""A simulation on a terminal, as in ``terminal``."""

from ..launch import serve_flags
from ..scheduler import Simulation, quantiles
from .summary import Paragraph, plain


def simulation_text(simulation: Simulation, unknown: str | None = None, paint=plain) -> str:
    """What a simulation comes to: steps, tokens per step, the pool, preemptions, and its times or
    why these are ``unknown``."""
    config, summary = simulation.config, simulation.summary
    again = summary.recomputed_tokens / max(1, summary.sched_tokens)
    rows = [
        ("steps", f"{summary.n_steps:,}", f"{summary.idle_steps:,} of them idle"),
        (
            "tokens per step",
            f"{summary.tokens_per_step:,.1f}",
            f"generated; {summary.sched_tokens_per_step:,.1f} scheduled",
        ),
        ("requests at once", f"{summary.max_run:,}", "at most"),
        (
            "pool use",
            f"{summary.mean_pool_use:.1%}",
            f"mean of the steps; at most {summary.peak_pool_use:.1%}",
        ),
        (
            "preemptions",
            f"{summary.n_preempt:,}",
            f"{summary.recomputed_tokens:,} tokens computed again ({again:.1%} of all)",
        ),
    ]
    if config.enable_prefix_caching:
        rows.append(("prefix cache hits", f"{summary.hit_tokens:,}", "tokens not computed"))
    rows += _times(simulation.times)
    flags = serve_flags(config.max_num_seqs, config.max_num_batched_tokens)
    return "\n".join(
        [
            paint(f"{summary.n_requests:,} requests, {flags}", bold=True),
            f"{summary.usable_blocks:,} blocks of {config.block_size} tokens",
            "",
            *(f"  {name:<20}{value:>12}   {note}" for name, value, note in rows),
            *Paragraph(
                f"(no times: {unknown})" if unknown else _TIMES[simulation.times.kind]
            ).as_text(plain),
        ]
    )


_TIMES = {
    "given": "Times: every step takes the time given.",
    "estimated": "Times: estimated from load runs.",
    "lower bound of the step time": "Times: a bound from the GPU's data sheet. A real step "
    "takes longer.",
}


def _times(times) -> list[tuple[str, str, str]]:
    """Rows of throughput, TTFT and TPOT, each with what kind of figure it is."""
    if times is None or not times.duration:
        return []
    bound = times.kind.startswith("lower bound")
    most, least = (
        (" at most", " at least")
        if bound
        else 2 * ([f" +- {times.relative_error:.0%}"] if times.relative_error else [""])
    )
    rows = [("throughput", f"{times.throughput:,.0f}", f"tokens/s{most}")]
    for name, found, unit, factor, digits in (
        ("TTFT", times.ttft, "s", 1, 2),
        ("TPOT", times.tpot, "ms", 1000, 1),
    ):
        median, high = quantiles(found).values()
        if median is not None:
            rows.append(
                (
                    name,
                    f"{factor * median:,.{digits}f}",
                    f"{unit}{least} (median; 99th percentile {factor * high:,.{digits}f})",
                )
            )
    return rows
