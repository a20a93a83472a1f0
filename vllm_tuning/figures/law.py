"""The figures: one function a figure, Axes in, Axes out; memory in GiB, lengths in tokens.

A figure whose data are not known keeps its axes and says why in one sentence.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
from uncertainties import unumpy

from ..answer import find_optimum
from ..law import model_run, sampler_run
from ..optimum import optimum_of
from ..pool import one_sided_quantile
from ..units import GIB, is_known
from .style import GREY, INK, LABEL, LOOK, SHORT, STAR, THOUSANDS, axes_of, branch_of, legend, say


def figure_1(model, optimum, ax=None, chosen=None, part=None):
    """P against max_num_seqs at the recommended token budget: the method's Figure 1, with point C.

    Without an answer: at the budget of most launches. Hollow launches had another budget and lie
    on the thin line of the law there. Where ``shows_pool``: the pool instead of P.
    ``chosen``: other flags (mns, mnbt), at which the law is drawn and a diamond stands. ``part``:
    "moving" draws only what an optimum moves, "frame" draws all; both have that animated.
    """
    return _draw_law(
        axes_of(ax), model, optimum, "max_num_seqs", "max_num_batched_tokens", chosen, part
    )


def figure_2(model, optimum, ax=None, chosen=None, part=None):
    """P against max_num_batched_tokens at the recommended number of requests; as ``figure_1``."""
    return _draw_law(
        axes_of(ax), model, optimum, "max_num_batched_tokens", "max_num_seqs", chosen, part
    )


def figure_1_by_length(model, optima, given, ax=None):
    """Figure 1 of each of ``optima`` in the same axes, the i-th with the gid ``frame-i``.

    A hollow star (``given-length``) keeps the place of ``optima[given]``. One without an answer
    draws nothing.
    """
    ax, (symbol, larger, both) = axes_of(ax, 3.2), _quantity(model)
    points = {i: best for i, optimum in enumerate(optima) if (best := optimum.recommended)}
    right = 1.1 * max(best.max_num_seqs for best in points.values())
    x = np.linspace(0, right, 129)  # from 128 on matplotlib leaves out what lies on a straight line
    for i, best in points.items():
        seqs, tokens = best.max_num_seqs, best.max_num_batched_tokens
        frame, point = {"gid": f"frame-{i}"}, (seqs, larger(*_curves(model, seqs, tokens).values()))
        _draw_runs(ax, x, _curves(model, x, tokens), larger, both, **frame)
        ax.plot(*point, **STAR, label=best.place, **frame)
        if i == given:
            ax.plot(
                *point,
                **STAR | {"color": "white", "mec": INK, "zorder": 5},
                gid="given-length",
                label=f"at the given {optima[i].workload.length:,} tokens",
            )
    _label_axes(ax, model, "max_num_seqs", right)
    if symbol == "P":
        ax.set_ylim(bottom=0)
    return legend(ax)


def shows_pool(model) -> bool:
    """Whether the law is drawn as the pool: no level of P is known, only its differences."""
    return bool(model.launches) and all(f.peak_activation is None for f in model.launches)


def _quantity(model):
    """What the law is drawn as: its symbol, which of two runs sets it, and that in words."""
    if shows_pool(model):
        return "pool", np.fmin, "pool, the smaller of both"
    return "P", np.fmax, "P, the larger of both"


def _label_axes(ax, model, along, right):
    quantity = "KV cache pool (GiB)" if shows_pool(model) else "peak activation, P (GiB)"
    ax.set(xlim=(0, right), xlabel=LABEL[along], ylabel=quantity)
    ax.xaxis.set_major_formatter(THOUSANDS)


def _draw_runs(ax, x, runs, larger, both, **look):
    """The curves of the runs that are known, {run: GiB}, and behind two of them what they set."""
    if len(runs) == 2:
        ax.plot(x, larger(*runs.values()), color=INK, lw=4, alpha=0.3, label=both, **look)
    for name, curve in runs.items():
        ax.plot(x, curve, LOOK[name][2], color=LOOK[name][0], lw=1.7, label=name, **look)


def marked(optimum, chosen) -> dict[str, dict[str, int]]:
    """The flags of the points that are marked: C, the recommended one, then the chosen ones."""
    best, names = optimum.recommended, ("max_num_seqs", "max_num_batched_tokens")
    points = {"C": {name: getattr(best, name) for name in names}} if best else {}
    return points | ({"chosen": dict(zip(names, chosen, strict=True))} if chosen else {})


def edges(model, points) -> dict[str, float]:
    """Where each flag's axis ends: behind the launches, doubled until all ``points`` have room."""
    ends = {}
    for name in LABEL:
        tried = [value for f in model.launches if (value := getattr(f.launch, name))]
        end = 1.06 * max(tried) if tried else 256
        mark = max([1, *(point[name] for point in points.values())])
        ends[name] = end * 2 ** max(0, math.ceil(math.log2(1.25 * mark / end)))
    return ends


def _curves(model, max_num_seqs, max_num_batched_tokens):
    """{run: GiB} of both runs, as P or as the pool each leaves; NaN where unknown."""
    seqs, tokens = np.broadcast_arrays(max_num_seqs, max_num_batched_tokens)
    if shows_pool(model):
        # Plain numbers: to propagate errors would cost time.
        exact = ("k1", "k2", "k", "s", "graph", "few")
        levels = ("pool_at_zero_tokens", "pool_at_zero_requests")
        plain = {name: getattr(model, name).n for name in exact + levels}
        pair = replace(model, **plain).pools(seqs, tokens)
    else:
        pair = (
            model_run(tokens, model.k1.n, model.a1.n),
            sampler_run(tokens, seqs, model.k2.n, model.a2.n, model.k.n, model.few.n),
        )
    return {run: curve / GIB for run, curve in zip(("model run", "sampler run"), pair, strict=True)}


def _draw_law(ax, model, optimum, along, held, chosen, part):
    points, (symbol, larger, both) = marked(optimum, chosen), _quantity(model)
    levels = Counter(value for f in model.launches if (value := getattr(f.launch, held)))
    usual = max(levels, key=lambda value: (levels[value], value), default=1)
    level = [usual, *(point[held] for point in points.values())][-1]
    ends, marks = edges(model, points), [0, *(point[along] for point in points.values())]
    right = ends[along]
    tried = [value for f in model.launches if (value := getattr(f.launch, along))]
    bends = np.r_[np.linspace(0, right), tried, np.minimum([*levels], right)]
    x = np.unique(np.r_[bends, marks, min(level, right)])
    runs = _curves(model, **{along: x, held: level})
    runs = {name: curve for name, curve in runs.items() if np.isfinite(curve).all()}
    moving = {"animated": part is not None}
    both += "" if part else f" at {SHORT[held]} {level:,}"  # a frame stays where the level moves
    _draw_runs(ax, x, runs, larger, both, **moving)
    if part != "moving":
        others = sorted(set(levels) - {level}) if runs else []
        for value in others:
            at = np.unique(bends)
            ax.plot(
                at,
                larger(*_curves(model, **{along: at, held: value}).values()),
                color=GREY,
                lw=0.8,
                zorder=1,
                label=f"{symbol} at {SHORT[held]} {_listed(others)}",
            )
        _label_axes(ax, model, along, right)
        _draw_launches(ax, model, along, held, level)
        low, high = ax.get_ylim()
        if part and len(runs) == 2:  # the same axes wherever the level moves
            low, high = sorted(
                larger(*_curves(model, **at).values()) for at in (dict.fromkeys(ends, 0), ends)
            )
        low = 0 if symbol == "P" else low
        ax.set_ylim(low, high + 0.3 * (high - low) * bool(points))  # the labels stand above
    for row, (name, point) in enumerate(points.items()):
        seqs, tokens = (point[flag] for flag in LABEL)
        at = point[along], float(larger(*_curves(model, **point).values()))
        star = STAR if name == "C" else STAR | {"marker": "D", "ms": 8}
        label = optimum.recommended.place if name == "C" else "chosen flags"
        ax.plot(*at, **star, **moving, label=label)
        ax.annotate(
            f"{name}: mns {seqs:,}, mnbt {tokens:,}, {symbol} = {at[1]:.3g} GiB",
            at,
            (min(0.75, max(0.25, at[0] / right)), 0.98 - 0.1 * row),
            **moving,
            ha="center",
            va="top",
            fontsize=8,
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.8, "shrinkB": 7},
            bbox={"fc": "white", "ec": "none", "pad": 0.6},
        )
    return ax if part == "moving" else legend(ax)


def _listed(values) -> str:
    """2,048; 512, 2,048; 64 to 16,384."""
    few = len(values) <= 3
    return (", " if few else " to ").join(
        f"{v:,}" for v in (values if few else values[:: len(values) - 1])
    )


def _draw_launches(ax, model, along, held, level):
    """Launches where they were measured: filled at ``level``, hollow elsewhere, with rounding.

    Pools of several utilizations stand where they would be at that of the answer.
    """
    pool, asked = shows_pool(model), model.gpu_memory_utilization
    shares = {f.launch.gpu_memory_utilization for f in model.launches} - {None}
    moves = pool and len(shares) > 1
    sign = 1 if pool == (model.route == "kv_only") else -1  # the residual is that of the reading
    drawn = [f for f in model.launches if getattr(f.launch, along)]
    for fitted in sorted(drawn, key=lambda f: getattr(f.launch, along)):
        x, mine = getattr(fitted.launch, along), getattr(fitted.launch, held)
        y = (fitted.kv_cache if pool else fitted.peak_activation) + sign * fitted.residual
        if moves and (share := fitted.launch.gpu_memory_utilization):
            y += model.total_memory.n * (asked - share) + fitted.launch.graph_charge
            y -= model.graph_charge(fitted.launch.max_num_seqs or 1)
        branch, hollow = branch_of(model, fitted), mine not in (level, None)
        ax.errorbar(
            x,
            y / GIB,
            model.unit / 2 / GIB,
            fmt=LOOK[branch][3],
            color=LOOK[branch][0],
            ms=6,
            mfc="white" if hollow else LOOK[branch][0],
            capsize=3,
            zorder=5,
            label=f"launch, {branch}" + f", other {SHORT[held]}" * hollow,
        )
    notes = [
        f"{name.upper()} is not known: {model.reasons[name]}."
        for name in ("k1", "k2")
        if not is_known(getattr(model, name))
    ]
    if moves:
        notes.append(f"Pools as at utilization {asked:g}, with the curve's CUDA graphs.")
    notes.append(
        f"Error bars: printed rounding, ±{model.unit / 2 / GIB:.2g} GiB, hidden where "
        "smaller than the marker."
        if drawn
        else f"No launch gives its {along}."
    )
    say(ax, " ".join(notes))


def residuals(model, ax=None):
    """Measured - predicted of each launch, with the band of the printed rounding around zero."""
    ax = axes_of(ax, 2.8)
    widest = max([model.unit / 2, *(abs(f.residual) for f in model.launches)])
    size, unit = next(
        (
            scale
            for scale in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
            if widest >= scale[0] / 10
        ),
        (1, "bytes"),
    )
    ax.set(
        xlabel="launch: mns (requests) / mnbt (tokens)",
        ylabel="measured - predicted\n"
        + ("KV cache pool" if model.route == "kv_only" else "peak activation")
        + f" ({unit})",
    )
    if not model.launches:
        return say(ax, "No launch could be used.", instead=True)
    half, flags = model.unit / 2 / size, []
    ax.axhspan(-half, half, color="#dddddd", label=f"printed rounding, ±{half:.3g} {unit}")
    ax.axhline(0, color=INK, lw=0.8)
    for i, fitted in enumerate(model.launches):
        branch = branch_of(model, fitted)
        ax.plot([i, i], [0, fitted.residual / size], color=LOOK[branch][0], lw=1.2)
        ax.plot(
            i,
            fitted.residual / size,
            LOOK[branch][3],
            color=LOOK[branch][0],
            label=f"{branch} sets P",
        )
        flags.append(f"{fitted.launch.max_num_seqs or '?'}/{fitted.launch.max_num_batched_tokens}")
    many = len(flags) > 10
    ax.set_xticks(range(len(flags)), flags, rotation=90 * many, fontsize=6.5 if many else 8)
    ax.set(xlim=(-0.6, len(flags) - 0.4), ylim=(-1.25 * widest / size, 1.25 * widest / size))
    if model.dof <= 0:
        say(ax, "As many parameters as launches: the law passes through all, which tests nothing.")
    return legend(ax, below=7.5 if many else 4.4)


def price_list(optimum, ax=None):
    """Requests that still fit the pool at each token budget, and the recommended point."""
    ax, best = axes_of(ax, 2.8), optimum.recommended
    ax.set(xlabel=LABEL["max_num_batched_tokens"], ylabel="mns that fits (requests)")
    if not best or not optimum.prices:
        return say(ax, f"No price list: {optimum.reason}.", instead=True)
    budgets = np.log2([price.max_num_batched_tokens for price in optimum.prices])
    fit = [price.max_num_seqs for price in optimum.prices]
    ax.bar(budgets, fit, 0.62, color="#dcdcdc", edgecolor=GREY)
    for budget, seqs in zip(budgets, fit, strict=True):
        ax.annotate(f"{seqs:,}", (budget, 0), (0, 4), textcoords="offset points", ha="center")
    ax.plot(
        math.log2(best.max_num_batched_tokens),
        best.max_num_seqs,
        **STAR,
        label=f"recommended: mns {best.max_num_seqs:,}, mnbt {best.max_num_batched_tokens:,}",
    )
    ax.set_xticks(budgets, [f"{price.max_num_batched_tokens:,}" for price in optimum.prices])
    ax.set_ylim(0, 1.15 * max(*fit, best.max_num_seqs))
    return legend(ax)


def sensitivity(model, workload, ax=None):
    """C* (left) and B* (right) against request length; the band: one-sided 95 % bounds of C*."""
    ax, optimum = axes_of(ax, 3.0), find_optimum(model, workload)
    ax.set(
        xlabel="length of a finished request, L = input + output (tokens)",
        ylabel="C* (requests at once)",
    )
    if optimum.max_num_seqs is None or optimum.max_num_seqs.n <= 0:
        return say(ax, f"No curve: {optimum.reason}.", instead=True)
    lengths = workload.length * 2.0 ** np.linspace(-2, 2, 65)
    lengths = [length for length in lengths if is_known(model.request_bytes(length, 1))]
    seqs, tokens = (
        np.array(values)
        for values in zip(*(optimum_of(model, length) for length in lengths), strict=True)
    )
    middle, half = unumpy.nominal_values(seqs), one_sided_quantile(model) * unumpy.std_devs(seqs)
    thin = " (thinner than the line)" * bool(np.all(half < 0.004 * middle.max()))
    ax.fill_between(
        lengths,
        middle - half,
        middle + half,
        color="#0072B2",
        alpha=0.25,
        lw=0,
        label=f"95 % bounds of C*{thin}",
    )
    ax.plot(lengths, middle, color="#0072B2", lw=1.8, label="C*, left axis")
    ax.axvline(workload.length, color=INK, ls=":", label=f"given: {workload.length:,} tokens")
    ax.plot([], [], "--", color="#D55E00", lw=1.6, label="B*, right axis")
    right = ax.twinx()
    right.plot(lengths, unumpy.nominal_values(tokens), "--", color="#D55E00", lw=1.6)
    right.set(ylabel="B* (tokens a step)", ylim=(0, 1.35 * unumpy.nominal_values(tokens).max()))
    right.spines.right.set_visible(True)
    right.grid(visible=False)
    ax.set_xscale("log", base=2)
    ax.set(
        xlim=(lengths[0], lengths[-1]), xticks=lengths[::16], ylim=(0, 1.05 * (middle + half).max())
    )
    for axis in (ax.xaxis, ax.yaxis, right.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=4)
