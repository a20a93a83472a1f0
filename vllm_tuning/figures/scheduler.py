"""What the scheduler does, drawn: steps, blocks, limits, and what a step costs; Axes in, Axes out.

A step is a column, so that a picture is read from left to right and needs no animation.
"""

import numpy as np
from IPython.display import Markdown

from ..scheduler import Sweep
from .style import INK, STAR, THOUSANDS, axes_of, legend, say

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


LINES = [("#0072B2", "-", "o"), ("#D55E00", "--", "s"), ("#009E73", "-.", "^")]


HIERARCHY = {  # of an H100 SXM: bytes, bytes/s
    "host memory, over PCIe 5": (None, 64e9),  # 128 GB/s both ways (data sheet)
    "HBM": (80e9, 3.35e12),  # data sheet
    # 132 SMs, each 256 KiB and 128 bytes a clock (Hopper architecture paper), at the 1.83 GHz that
    # the data sheet's rate stands for: 989.4e12 / (132 SMs x 4 tensor cores x 1024 operations)
    "SRAM, shared memory and L1": (132 * 256 * 1024, 132 * 128 * 1.83e9),
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
    return legend(_steps_and_requests(ax, len(trace), [r.id for r in trace.requests]), ncols=4)


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
    ax.set_xticks(
        range(1, len(steps) + 1),
        [
            f"step {step}\n" + ", ".join(f"{name}: {count}" for name, count in tokens.items())
            for step, (tokens, _) in enumerate(steps, 1)
        ],
    )
    ax.set(
        xlabel="step, and the tokens computed in it",
        ylabel="physical block",
        xlim=(0.5, len(steps) + 0.5),
        ylim=(len(order) - 0.5, -0.5),
    )
    ax.set_yticks(range(len(order)), order)
    ax.grid(visible=False)
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
            ax.text(
                steps[len(steps) // 2],
                113,
                flag,
                ha="center",
                va="bottom",
                fontsize=8,
                fontweight="bold",
            )
    ax.set(xlabel="step", ylabel="share of the limit (%)", xlim=(0.5, len(x) + 0.5), ylim=(0, 124))
    ax.set_yticks(range(0, 101, 25))
    return legend(
        say(ax, "Band at the top: while requests wait, the limit that keeps the next one out.")
    )


def preemptions(simulations, ax=None):
    """Running requests and preemptions so far, step by step, for each max_num_seqs."""
    ax = axes_of(ax)
    for simulation, (colour, style, _) in zip(simulations, LINES):
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


def token_totals(simulations, ax=None):
    """Tokens computed in all, of the same requests under different flags, in thousands."""
    ax = axes_of(ax, 2.4)
    names = []
    for y, simulation in enumerate(simulations):
        summary, left = simulation.summary, 0.0
        again, answer = summary.recomputed_tokens, summary.output_tokens - summary.n_requests
        for size, (label, (colour, hatch)) in zip(
            (summary.sched_tokens - again - answer, answer, again), list(WORK.items())
        ):
            ax.barh(y, size / 1e3, 0.6, left, color=colour, hatch=hatch, ec="w", label=label)
            left += size / 1e3
        ax.text(left, y, f" {summary.output_tokens:,} put out", va="center", fontsize=8)
        config = simulation.config
        names.append(f"mns {config.max_num_seqs:,} / mnbt {config.max_num_batched_tokens:,}")
    ax.set_yticks(range(len(names)), names)
    ax.set(
        xlabel="tokens computed (thousands)",
        ylim=(len(names) - 0.4, -0.6),
        xlim=(0, 1.3 * ax.dataLim.xmax),
    )
    ax.xaxis.set_major_formatter(THOUSANDS)
    return legend(ax)


def memory_hierarchy(step_time, ax=None):
    """How fast each memory of an H100 hands out data, and how long the weights take through it."""
    ax = axes_of(ax, 2.2)
    for y, (name, (size, rate)) in enumerate(HIERARCHY.items()):
        look = LINES[y][0], (None, "////", "....")[y]
        ax.barh(y, rate / 1e9, 0.6, color=look[0], hatch=look[1], ec="w", lw=0.5)
        holds = f"{size / 1e9:,.2g} GB; " if size else ""
        ax.text(
            rate / 1e9,
            y,
            f" {rate / 1e9:,.0f} GB/s; {holds}weights in "
            f"{1e3 * step_time.weight_bytes / rate:,.1f} ms",
            va="center",
            fontsize=8,
        )
    ax.set_xscale("log")
    ax.set(
        xlabel="bandwidth (GB/s)",
        xlim=(20, 1e8),
        xticks=[100, 1000, 10_000, 100_000],
        ylim=(len(HIERARCHY) - 0.4, -0.6),
    )
    ax.minorticks_off()
    ax.set_yticks(range(len(HIERARCHY)), HIERARCHY)
    ax.xaxis.set_major_formatter(THOUSANDS)
    return ax


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


def over_mns(sweeps: dict[str, Sweep], what: str, ax=None):
    """throughput, preemptions or pool_use of each sweep over mns, with the method's point."""
    ax = axes_of(ax)
    label, scale = {
        "throughput": ("tokens/s, at most", 1),
        "preemptions": ("preemptions", 1),
        "pool_use": ("mean use of the pool (%)", 100),
    }[what]
    for (name, result), (colour, style, marker) in zip(sweeps.items(), LINES):
        values = scale * getattr(result, what)
        ax.plot(result.seqs, values, style, marker=marker, color=colour, ms=4, lw=1.6, label=name)
        ax.plot(
            result.full,
            values[result.seqs == result.full],
            **STAR,
            label="the method's point: all can be full",
        )
        if what == "throughput":
            ax.plot(
                result.best,
                values.max(),
                "o",
                mfc="none",
                mec=INK,
                ms=11,
                label="best of the sweep",
            )
    ax.axvline(result.average, color=INK, ls=":", label="pool / (input + output/2)")
    ax.set(
        xlabel="max_num_seqs (requests)",
        ylabel=label,
        xlim=0,
        ylim=(0, max(1, 1.12 * ax.dataLim.ymax)),
    )
    ax.yaxis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=3)


def costs(sweeps, ax=None):
    """Throughput over mns for workloads of several shapes, each as a share of its best, %."""
    ax = axes_of(ax)
    for result, (colour, style, marker) in zip(sweeps, LINES):
        x, y = result.seqs / result.average, 100 * result.throughput / result.throughput.max()
        work = result.workload
        ax.plot(
            x,
            y,
            style,
            marker=marker,
            color=colour,
            ms=4,
            lw=1.6,
            label=f"{work.input_len:,} in, {work.output_len:,} out: mns {result.full} costs "
            f"{100 * result.cost:.0f} %",
        )
        ax.plot(
            result.full / result.average,
            100 * (1 - result.cost),
            **STAR,
            label="the method's point",
        )
    ax.axvline(1, color=INK, ls=":")
    ax.set(
        xlabel="mns, as a share of pool / (input + output/2)",
        ylim=(50, 104),
        ylabel="throughput, % of the best",
    )
    return legend(ax, ncols=2)


def times(simulations) -> Markdown:
    """Preemptions, throughput, median TTFT and TPOT of simulations with a step time, as a table."""
    rows = []
    for simulation in simulations:
        result, summary = simulation.times, simulation.summary
        rows.append(
            f"| {simulation.config.max_num_seqs:,} | {summary.n_steps:,} | "
            f"{summary.n_preempt:,} | {result.throughput:,.0f} | "
            f"{np.median(result.ttft):,.1f} | {1e3 * np.nanmedian(result.tpot):,.1f} | "
            f"{1e3 * np.nanmax(result.tpot):,.1f} |"
        )
    head = (
        "mns",
        "steps",
        "preemptions",
        "tokens/s",
        "TTFT, median (s)",
        "TPOT, median (ms)",
        "TPOT, largest (ms)",
    )
    return Markdown(
        f"Times from a {simulations[0].times.kind}:\n\n| {' | '.join(head)} |\n|"
        + " ---: |" * len(head)
        + "\n"
        + "\n".join(rows)
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


def _steps_and_requests(ax, steps, names):
    ax.set(xlabel="step", ylabel="request", xlim=(0.5, steps + 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_yticks(range(len(names)), names)
    ax.set_xticks(range(1, steps + 1))
    ax.grid(visible=False)
    return ax
