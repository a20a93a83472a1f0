"""A load over time, and what was predicted of it: one function a figure, Axes in, Axes out."""

import numpy as np

from ..load import PEAK_LIMIT, Verdict, observed_request
from .style import GREY, INK, LINES, STAR, THOUSANDS, axes_of, legend, say


def kv_cache_usage(verdicts: dict[str, Verdict], ax=None):
    """Use of the pool, %, of each load; thin: what all admitted requests would take when full."""
    ax = axes_of(ax)
    for (name, verdict), look in zip(verdicts.items(), LINES, strict=False):
        usage = 100 * verdict.series.total("kv_cache_usage")
        _line(ax, verdict, usage, look, f"{name}, measured")
        if full := predicted_usage(verdict):
            ax.axhline(
                100 * full,
                color=look[0],
                ls=look[1],
                lw=0.8,
                label=f"{name}, all admitted full: {full:.0%}",
            )
    ax.axhline(100 * PEAK_LIMIT, color=INK, ls=":", label=f"limit {PEAK_LIMIT:.0%}")
    ax.set(ylabel="use of the KV cache (%)", ylim=(0, max(105, 1.05 * _top(ax))))
    return _over_time(ax, verdicts)


def requests(verdict: Verdict, ax=None, recommended: int | None = None):
    """Requests running and waiting; the lines are what the server admits, what fits full, and the
    max_num_seqs recommended."""
    ax, series, server = axes_of(ax), verdict.series, verdict.server
    for name, look in zip(("running", "waiting"), LINES, strict=False):
        _line(ax, verdict, series.total(name), look, f"{name}, measured")
    pool, request = server.pool(series), observed_request(series)
    engines = len(series.engines)
    if server.max_num_seqs:
        ax.axhline(
            engines * server.max_num_seqs,
            color=GREY,
            label=(
                f"max_num_seqs {server.max_num_seqs:,}" + f" x {engines} engines" * (engines > 1)
            ),
        )
    if pool and request:
        fit = engines * pool.requests(request.length)
        ax.axhline(
            fit,
            color=INK,
            ls=":",
            label=f"{fit:,} fit when all are full (p95 {request.length:,} tokens)",
        )
    if recommended:
        ax.axhline(
            engines * recommended,
            color=LINES[2][0],
            ls="-.",
            label=f"recommended {recommended:,}",
        )
    ax.set(ylabel="requests", ylim=0)
    ax.yaxis.set_major_formatter(THOUSANDS)
    return _over_time(ax, {"": verdict})


def preemptions(verdicts: dict[str, Verdict], ax=None):
    """Preemptions since the first scrape of each load."""
    ax = axes_of(ax, 2.6)
    for (name, verdict), look in zip(verdicts.items(), LINES, strict=False):
        _line(ax, verdict, verdict.series.counted("preemptions"), look, name)
    ax.set(ylabel="preemptions so far", ylim=(0, max(1, 1.08 * _top(ax))))
    return _over_time(ax, verdicts)


def preemptions_by_mns(runs, verdict: Verdict, ax=None):
    """Preemptions of load runs that differ in max_num_seqs, and where they are predicted to begin.

    runs: columns max_num_seqs, preemptions, tokens_per_step. verdict: of one of them, for the pool
    and the lengths.
    """
    ax, seqs = axes_of(ax), runs["max_num_seqs"]
    ax.plot(
        seqs, runs["preemptions"], "s--", ms=5, color=LINES[1][0], label="preemptions, measured"
    )
    ax.plot([], [], "o-", ms=5, color=LINES[0][0], label="tokens a step, measured (right)")
    pool, request = verdict.server.pool(verdict.series), observed_request(verdict.series)
    if pool and request:
        fit = pool.requests(request.length)
        ax.plot(fit, 0, clip_on=False, **STAR, label=f"none up to {fit}, predicted")
    ax.set(xlabel="max_num_seqs (requests)", ylabel="preemptions", xscale="log", ylim=0)
    ax.set_xticks(seqs, [f"{value:g}" for value in seqs])
    ax.minorticks_off()
    other = ax.twinx()
    other.plot(seqs, runs["tokens_per_step"], "o-", ms=5, color=LINES[0][0])
    other.set(ylabel="tokens a step", ylim=0)
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    return legend(ax)


def predicted_usage(verdict: Verdict) -> float | None:
    """What max_num_seqs requests of the observed p95 length take of the pool when all are full."""
    server, request = verdict.server, observed_request(verdict.series)
    pool = server.pool(verdict.series)
    if not (pool and request and server.max_num_seqs):
        return None
    return server.max_num_seqs * request.blocks(pool.block_size) / pool.usable


def _line(ax, verdict: Verdict, values, look, label: str) -> None:
    """Over the seconds since the first scrape, else over the scrape's number."""
    seconds, (colour, style, marker) = verdict.series.seconds, look
    ax.plot(
        np.arange(1, len(values) + 1) if seconds is None else seconds,
        values,
        style,
        marker=marker,
        ms=3,
        color=colour,
        label=label,
    )


def _top(ax) -> float:
    return max((np.nanmax(line.get_ydata(), initial=0) for line in ax.lines), default=0)


def _over_time(ax, verdicts):
    timed = all(verdict.series.seconds is not None for verdict in verdicts.values())
    ax.set_xlabel("time since the first scrape (s)" if timed else "scrape, in the order given")
    if not any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in ax.lines):
        return say(ax, "No line: the scrapes do not hold this metric.", instead=True)
    return legend(ax, ncols=2)
