"""The pool before any launch: what a token costs, what fits, how many requests to admit."""

import numpy as np

from ..budget import RISK, RunningRequest
from ..units import GIB
from .style import GREY, INK, LINES, THOUSANDS, axes_of, legend, say


def request_costs(layouts, budget, ax=None):
    """GiB of KV cache that one request takes against its length, for {model: CacheLayout}."""
    ax, lengths = axes_of(ax), np.unique(np.geomspace(256, 131072, 73).astype(int))
    for (name, cache), (colour, style, _) in zip(layouts.items(), LINES, strict=False):
        ax.plot(
            lengths,
            [
                cache.block_bytes * cache.request_blocks(int(length), budget) / GIB
                for length in lengths
            ],
            color=colour,
            ls=style,
            lw=1.7,
            label=name,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set(
        xlabel="length of a request, L (tokens)",
        ylabel="KV cache of a request (GiB)",
        xlim=(lengths[0], lengths[-1]),
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return legend(ax)


def requests_by_length(found, ax=None):
    """Requests that the pool holds when all are of one length, against that length."""
    ax, marks = axes_of(ax), {}
    if found.blocks < 2:
        return _nothing(ax)
    marks['max_model_len: vLLM prints this as "Maximum concurrency"'] = found.max_model_len, "s"
    if found.request:
        marks["the requests to be served"] = found.request.length, "o"

    def fit(length):
        return found.cache.concurrency(found.blocks, length, found.max_num_batched_tokens)

    lengths = np.geomspace(256, max(256, found.max_model_len), 97).astype(int)
    ax.plot(lengths, [fit(int(length)) for length in lengths], color="#0072B2", lw=1.8)
    for label, (length, marker) in marks.items():
        ax.plot(length, fit(length), marker, color=INK, ms=8, label=label, ls="none")
        side, shift = ("right", -10) if marker == "s" else ("left", 10)
        ax.annotate(
            f"{fit(length):,.4g} of {length:,} tokens",
            (length, fit(length)),
            (shift, 0),
            textcoords="offset points",
            ha=side,
            va="center",
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set(xlabel="length of every request, L (tokens)", ylabel="requests that fit")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return legend(ax)


def filling(found, seqs, ax=None):
    """Share of the pool that so many requests need while all of them generate their output."""
    ax, shape = axes_of(ax), found.request
    if found.blocks < 2:
        return _nothing(ax)
    x = np.unique(np.linspace(0, shape.output_len, 101).astype(int))
    blocks = np.array(
        [
            found.cache.request_blocks(shape.input_len + int(done), found.max_num_batched_tokens)
            for done in x
        ]
    )
    ax.axhline(100, color=INK, lw=1, label="the pool")
    for count, (colour, style, _) in zip(seqs, LINES, strict=False):
        use = 100 * count * blocks / (found.blocks - 1)
        fit = use <= 100
        ax.plot(
            x,
            use,
            color=colour,
            ls=style,
            lw=1.8,
            label=f"mns {count:,}: "
            + ("fits to the end" if fit.all() else f"too much after {x[~fit][0]:,} tokens"),
        )
    ax.set(
        xlabel="tokens that each request has generated",
        ylabel="needed of the pool (%)",
        ylim=0,
        xlim=(0, x[-1]),
    )
    return legend(
        say(
            ax,
            f"Every request has a prompt of {shape.input_len:,} tokens and wants "
            f"{shape.output_len:,}; all start at once.",
        )
    )


def overflow_risk(found, ax=None):
    """Probability at a moment that mns running requests overflow the pool, by mns."""
    ax, blocks = axes_of(ax), found.blocks - 1
    if blocks < 1:
        return _nothing(ax)
    running = RunningRequest(
        found.cache,
        *zip(*((each.input_len, each.output_len) for each in found.lengths), strict=True),
        found.max_num_batched_tokens,
    )
    full, mean = found.max_num_seqs(found.pool.value), blocks / running.mean
    x = np.unique(np.linspace(0.7 * min(full, mean), 1.1 * mean, 80).astype(int))
    ax.plot(
        x,
        [100 * running.overflow(int(count), blocks) for count in x],
        color="#0072B2",
        lw=1.8,
        label="normal, mean and variance of the file",
    )
    for count, label, marker in (
        (full, f"95th percentile, margin {found.margin:g}: {full:,}", "D"),
        (
            found.risk.max_num_seqs,
            f"risk of {100 * RISK:g} % at most: {found.risk.max_num_seqs:,}",
            "s",
        ),
    ):
        ax.plot(
            count,
            100 * running.overflow(count, blocks),
            marker,
            color=INK,
            ms=8,
            ls="none",
            label=label,
            clip_on=False,
            zorder=6,
        )
    ax.axvline(mean, color=GREY, ls=":", label=f"pool / mean use of a request: {mean:,.0f}")
    ax.set(
        xlabel="max_num_seqs (requests)",
        ylim=(0, 102),
        ylabel="probability that the pool\noverflows at a moment (%)",
    )
    ax.xaxis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=2)


def _nothing(ax):
    return say(
        ax,
        "No curve: nothing is left for the pool. Take a larger card, a higher "
        "utilization, or smaller weights.",
        instead=True,
    )
