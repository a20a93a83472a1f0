"""What the scheduler does, drawn: steps, blocks, limits, and what a step costs; Axes in, Axes out.

A step is a column, so that a picture is read from left to right and needs no animation.
"""

import numpy as np

from .style import INK, LINES, THOUSANDS, axes_of, legend, say

WORK = {  # colour of Okabe and Ito, hatch
    "prompt": ("#E69F00", "////"),
    "decode, one token": ("#56B4E9", None),
    "computed again": ("#D55E00", "xxxx"),
    "waits": ("white", "...."),
}
REQUESTS = [("#56B4E9", None), ("#E69F00", "////"), ("#009E73", "\\\\\\\\"), ("#CC79A7", "....")]
LIMITS = {  # column of the trace's table: flag, name, colour, line style, hatch
    "tokens": ("mnbt", "tokens, of mnbt", "#D55E00", "-", "////"),
    "running": ("mns", "requests, of mns", "#0072B2", "--", None),
    "used": ("pool", "KV blocks, of the pool", "#009E73", "-.", "...."),
}


def request_steps(trace, ax=None):
    """One row a request, one column a step: its tokens, and whether they are prompt or answer."""
    ax, grid = axes_of(ax), trace.grid()
    first = dict(trace.events("first_token")[:, ::-1].tolist())
    end = dict(trace.events("finished")[:, ::-1].tolist())
    for row, request in enumerate(trace.requests):
        for step in range(request.at, end[row] + 1):
            tokens = grid[row, step]
            kind = (
                "waits"
                if not tokens
                else "prompt"
                if step <= first[row]
                else "computed again"
                if tokens > 1
                else "decode, one token"
            )
            _bar(ax, step + 0.54, row, 0.92, *WORK[kind], label=kind, lw=0.4)
            if tokens:
                _word(ax, step + 1, row, tokens)
    for step, row in trace.events("preempted").tolist():
        ax.plot(step + 0.5, row, "X", color=INK, ms=8, mec="w", label="preempted")
    _rows(ax, len(trace), [request.id for request in trace.requests])
    ax.set(xlabel="step", ylabel="request")
    return legend(ax, ncols=4)


def blocks(steps, order, ax=None):
    """Physical blocks, one row each in this order, and in each step the slots filled, by request.

    steps: of ``block_tables``. A slot that two requests share is drawn in halves.
    """
    ax = axes_of(ax)
    tables = [table for _, table in steps]
    names = list(dict.fromkeys(name for table in tables for name in table))
    size = max(filled for table in tables for rows in table.values() for _, filled in rows)
    for step, table in enumerate(tables):
        for row in range(len(order)):
            for slot in range(size):
                _bar(ax, step + 0.56 + 0.88 * slot / size, row, 0.88 / size, "white", None, lw=0.5)
        holders = {}
        for name, rows in table.items():
            for logical, (block, filled) in enumerate(rows):
                holders.setdefault(block, []).append((name, logical, filled))
        for block, held in holders.items():
            row = order.index(block)
            for part, (name, _, filled) in enumerate(held):
                for slot in range(filled):
                    _bar(
                        ax,
                        step + 0.56 + 0.88 * slot / size,
                        row,
                        0.88 / size,
                        *REQUESTS[names.index(name) % len(REQUESTS)],
                        lw=0.5,
                        label=f"request {name}",
                        part=(part, len(held)),
                    )
            slots = f" {held[0][2]}/{size}" if len(held) == 1 else ""  # shared ones are full
            _word(
                ax, step + 1, row, " ".join(f"{name}{logical}" for name, logical, _ in held) + slots
            )
    _rows(ax, len(steps), order)
    ax.set_xticklabels(
        [
            f"step {step}\n" + ", ".join(f"{name}: {count}" for name, count in tokens.items())
            for step, (tokens, _) in enumerate(steps, 1)
        ],
    )
    ax.set(xlabel="step, and the tokens computed in it", ylabel="physical block")
    return legend(
        say(ax, f"A1 2/{size}: of logical block 1 of request A 2 slots of {size} are filled."),
        below=5.6,
    )


def limits(simulation, ax=None):
    """Tokens, requests and blocks of each step as a share of their limits, and which one binds."""
    ax, config, table = axes_of(ax), simulation.config, simulation.trace.table()
    most = {
        "tokens": config.max_num_batched_tokens,
        "running": config.max_num_seqs,
        "used": config.num_gpu_blocks - 1,
    }
    x, shares = table["step"] + 1, {name: 100 * table[name] / most[name] for name in LIMITS}
    binds = np.where(
        shares["running"] >= 100, "running", np.where(shares["tokens"] >= 100, "tokens", "used")
    )
    for name, (flag, label, colour, style, hatch) in LIMITS.items():
        ax.plot(x, shares[name], style, color=colour, lw=1.6, label=f"{label} ({most[name]:,})")
        steps = x[(binds == name) & (table["waiting"] > 0)]
        ax.bar(steps, 8, 1, 104, color="w", ec=colour, hatch=hatch, lw=0)
        ax.bar(steps, 8, 1, 104, color=colour, alpha=0.35, lw=0)
        if len(steps):
            at = steps[len(steps) // 2], 113
            ax.text(*at, flag, ha="center", va="bottom", fontsize=8, fontweight="bold")
    ax.set(xlabel="step", ylabel="share of the limit (%)", xlim=(0.5, len(x) + 0.5), ylim=(0, 124))
    ax.set_yticks(range(0, 101, 25))
    return legend(
        say(ax, "Band at the top: while requests wait, the limit that keeps the next one out.")
    )


def preemptions(simulations, ax=None):
    """Running requests and preemptions so far, step by step, for each max_num_seqs."""
    ax = axes_of(ax)
    for simulation, (colour, style, _) in zip(simulations, LINES, strict=False):
        table, seqs = simulation.trace.table(), simulation.config.max_num_seqs
        ax.plot(
            table["step"] + 1,
            table["running"],
            style,
            color=colour,
            lw=1.6,
            label=f"mns {seqs:,}: requests running",
        )
        ax.plot(
            table["step"] + 1,
            np.cumsum(table["preempted"]),
            ":",
            color=colour,
            lw=2.2,
            label=f"mns {seqs:,}: preemptions so far ({simulation.summary.n_preempt:,})",
        )
    ax.set(xlabel="step", ylabel="requests, preemptions", ylim=0, xlim=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=2)


def decode_step(step_time, context, ax=None):
    """The least time of a step in which all requests decode, ms, and what sets it.

    context: tokens of each request so far. Marked: where the operations take as long as the
    weights, and where the KV caches do.
    """
    ax, seqs = axes_of(ax), np.unique(np.geomspace(1, 1024, 121).astype(int))
    read, weights = step_time.read_seconds(seqs * context), step_time.read_seconds()
    for (label, values), (colour, style, _) in zip(
        (
            ("read the KV caches", read - weights),
            ("multiply", step_time.compute_seconds(seqs)),
            ("read the weights", weights + 0 * seqs),
        ),
        LINES,
        strict=False,
    ):
        ax.plot(seqs, 1e3 * values, style, color=colour, lw=1.6, label=label)
    ax.plot(
        seqs,
        1e3 * step_time.seconds(seqs, seqs * context),
        color=INK,
        lw=4,
        alpha=0.3,
        label="the step at least",
    )
    for at, what, marker in (
        (step_time.kv_bound_requests(context), "the KV caches", "D"),
        (step_time.compute_bound_requests(), "the operations", "s"),
    ):
        ax.plot(
            at,
            1e3 * weights,
            marker,
            color=INK,
            ms=7,
            zorder=6,
            ls="none",
            label=f"{what} take as long as the weights: mns {at:,.0f}",
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="requests that decode, mns",
        xlim=(1, 1024),
        ylabel="least time of a step (ms)",
        ylim=(0.1, None),
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return legend(
        say(
            ax, f"Every request has {context:,} tokens of context. From data sheets: a lower bound."
        ),
        ncols=2,
    )


def _bar(ax, x, row, width, colour, hatch, label=None, lw=0.5, part=(0, 1)):
    share = 0.8 / part[1]
    ax.barh(
        row - 0.4 + (part[0] + 0.5) * share,
        width,
        share,
        x,
        color=colour,
        hatch=hatch,
        ec=INK if colour == "white" else "#555555",
        lw=lw,
        label=label,
    )


def _word(ax, x, row, text):
    ax.text(
        x,
        row,
        text,
        ha="center",
        va="center",
        fontsize=8,
        fontweight="bold",
        bbox={"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.8},
    )


def _rows(ax, steps, names):
    """One column a step, one row a name."""
    ax.set(xlim=(0.5, steps + 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_xticks(range(1, steps + 1))
    ax.set_yticks(range(len(names)), names)
    ax.grid(visible=False)
