"""What each max_num_seqs costs: output tokens a second, and the time of a token."""

from math import nan

import numpy as np

from ..scheduler import StepTimes, Throughput, given_runs
from .style import GREY, INK, LINES, STAR, THOUSANDS, axes_of, legend, say


def output_tokens(found: Throughput, runs, ax=None):
    """Tokens a second over max_num_seqs with a band of 10 %, the point, the best and the knee."""
    ax = _curve(axes_of(ax), found, lambda point: point.output_tokens_per_s)
    low, high = ([getattr(p, end) for p in found.points] for end in ("low", "high"))
    seqs = [point.max_num_seqs for point in found.points]
    ax.fill_between(seqs, low, high, color=LINES[0][0], alpha=0.15, lw=0, label="±10 %")
    ax.plot(
        [run.running for run in runs],
        [run.output_tokens_per_s for run in runs],
        "s",
        color=GREY,
        mfc="white",
        label="load run, at its running requests",
    )
    best, method = found.best, found.method
    ax.plot(
        best.max_num_seqs,
        best.output_tokens_per_s,
        "o",
        ms=12,
        color=INK,
        mfc="none",
        label="best of the prediction",
    )
    knee, label = found.at_knee, f"95 % of it, mns {found.knee:,}"
    ax.plot(knee.max_num_seqs, knee.output_tokens_per_s, "D", color=INK, label=label)
    ax.plot(method.max_num_seqs, method.output_tokens_per_s, **STAR, label="the method's point")
    ax.set(ylabel="output tokens/s", ylim=0)
    return legend(_said(ax, found), ncols=3)


def held_out(measured, ax=None):
    """A real sweep: three runs given, the curve through them, and the points left out."""
    ax, given = axes_of(ax), given_runs(measured)
    times = StepTimes(given)
    n = np.linspace(times.running[0], times.running[-1], 100)
    rate = n / times(n)
    ax.fill_between(n, 0.9 * rate, 1.1 * rate, color=LINES[0][0], alpha=0.15, lw=0, label="±10 %")
    ax.plot(n, rate, color=LINES[0][0], label="predicted from the three")
    for runs, filled, label in (
        (given, INK, "load run given"),
        ([run for run in measured if run not in given], "white", "held out"),
    ):
        x, y = ([getattr(run, name) for run in runs] for name in ("running", "output_tokens_per_s"))
        ax.plot(x, y, "o", color=INK, mfc=filled, label=label)
    ax.set(xlabel="requests running at once, n", ylabel="output tokens/s, X", xlim=0, ylim=0)
    ax.yaxis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=4)


def token_time(found: Throughput, ax=None):
    """Milliseconds of a further token over max_num_seqs, and the point."""
    ax = _curve(axes_of(ax), found, lambda point: 1e3 * point.tpot_s)
    method = found.method
    ax.plot(method.max_num_seqs, 1e3 * method.tpot_s, **STAR, label="the method's point")
    ax.set(ylabel="time per token (ms)", ylim=0)
    return legend(_said(ax, found), ncols=3)


def _curve(ax, found: Throughput, value):
    """Solid between the load runs; dashed where simulated or not measured."""
    for kind, dashes, label in (
        (lambda p: not (p.preempts or p.beyond_runs), "-", "between the load runs"),
        (lambda p: p.beyond_runs and not p.preempts, ":", "not measured"),
        (lambda p: p.preempts, "--", "simulated: preemptions"),
    ):
        mine = [kind(p) for p in found.points]
        beside = [a or b for a, b in zip([*mine[1:], False], [False, *mine[:-1]], strict=True)]
        joined = [own or (near and dashes != "-") for own, near in zip(mine, beside, strict=True)]
        if any(mine):
            ax.plot(
                [p.max_num_seqs for p in found.points],
                [value(p) if on else nan for p, on in zip(found.points, joined, strict=True)],
                dashes,
                marker=".",
                color=LINES[0][0],
                label=label,
            )
    ax.set(xlabel="max_num_seqs (requests)", xlim=0)
    ax.xaxis.set_major_formatter(THOUSANDS)
    ax.yaxis.set_major_formatter(THOUSANDS)
    return ax


def _said(ax, found: Throughput):
    method = found.method
    return say(
        ax,
        f"The method's point gives {method.output_tokens_per_s:,.0f} tokens/s, {found.standing}, "
        f"a token every {1e3 * method.tpot_s:,.1f} ms.",
    )
