"""The figures: one function a figure, Axes in, Axes out; memory in GiB, lengths in tokens.

A quantity has one colour everywhere, and a hatch, line style or marker for grey print (``LOOK``).
A figure whose data are not known keeps its axes and says why in one sentence.
"""

import math
import textwrap
from collections import Counter

import numpy as np
from matplotlib import pyplot as plt, ticker
from uncertainties import unumpy

from .branches import model_run, peak_activation, sampler_run
from .optimum import default_flags, find_optimum, optimum_of
from .pool import one_sided_quantile
from .uncertain import is_known
from .units import GIB

INK, GREY = "#222222", "#8a8a8a"
LOOK = {  # colour of Okabe and Ito, hatch, line style, marker
    "weights": ("#0072B2", None, "-", "D"),
    "non-torch": (GREY, "||||", ":", "v"),
    "weights and non-torch": ("#0072B2", "||||", "-", "D"),
    "model run": ("#D55E00", "\\\\\\\\", "--", "s"),
    "sampler run": ("#009E73", "////", "-.", "o"),
    "either run": ("#E69F00", "++", "-", "d"),
    "CUDA graphs": ("#CC79A7", "xxxx", ":", "^"),
    "KV cache": ("#56B4E9", None, "-", "P"),
}
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8,
    "hatch.linewidth": 0.6, "svg.hashsalt": "vllm-tuning", "svg.fonttype": "path",
}
LABEL = {"max_num_seqs": "max_num_seqs, C (requests)",
         "max_num_batched_tokens": "max_num_batched_tokens, B (tokens)"}
SHORT = {"max_num_seqs": "mns", "max_num_batched_tokens": "mnbt"}
THOUSANDS = ticker.FuncFormatter(lambda value, _: f"{value:,.6g}")
STAR = {"marker": "*", "ms": 15, "color": INK, "mec": "white", "ls": "none", "zorder": 6}


def _axes(ax, height=3.4):
    """The given Axes, or those of a new pyplot figure 7 inches wide."""
    with plt.rc_context(STYLE):
        return ax or plt.subplots(figsize=(7, height), layout="constrained")[1]


def _say(ax, text, instead=False):
    """Sentences above the axes, where they cover nothing; ``instead`` of any data."""
    ax.set_title(textwrap.fill(text[:1].upper() + text[1:], 104), fontsize=8, color="#555555",
                 loc="left")
    if instead:
        ax.set(xticks=[], yticks=[])
    return ax


def _legend(ax, ncols=3, below=4.4):
    """One entry a label, ``below`` the axes by so many ems."""
    once = {label: getattr(h, "lines", [h])[0] for h, label in zip(*ax.get_legend_handles_labels())}
    ax.legend(once.values(), once, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=ncols,
              borderaxespad=below)
    return ax


def figure_1(model, optimum, ax=None):
    """P against max_num_seqs at the recommended token budget: the method's Figure 1, with point C.

    Without an answer: at the budget of most launches. Hollow launches had another budget and lie
    on the thin line of the law there. Where ``shows_pool``: the pool instead of P.
    """
    return _draw_law(_axes(ax), model, optimum, "max_num_seqs", "max_num_batched_tokens")


def figure_2(model, optimum, ax=None):
    """P against max_num_batched_tokens at the recommended number of requests; as ``figure_1``."""
    return _draw_law(_axes(ax), model, optimum, "max_num_batched_tokens", "max_num_seqs")


def figure_1_by_length(model, optima, given, ax=None):
    """Figure 1 of each of ``optima`` in the same axes, the i-th with the gid ``frame-i``.

    A hollow star (``given-length``) keeps the place of ``optima[given]``. One without an answer
    draws nothing.
    """
    ax, pool = _axes(ax, 3.2), shows_pool(model)
    symbol, larger, word = ("pool", np.fmin, "smaller") if pool else ("P", np.fmax, "larger")
    points = {i: (best.max_num_seqs, best.max_num_batched_tokens)
              for i, optimum in enumerate(optima) if (best := optimum.recommended)}
    right = 1.1 * max(seqs for seqs, _ in points.values())
    x = np.linspace(0, right, 129)  # from 128 on matplotlib leaves out what lies on a straight line
    for i, (seqs, tokens) in points.items():
        frame, runs = {"gid": f"frame-{i}"}, _curves(model, x, tokens)
        point = seqs, larger(*_curves(model, seqs, tokens))
        ax.plot(x, larger(*runs), color=INK, lw=4, alpha=0.3, **frame,
                label=f"{symbol}, the {word} of both")
        for name, curve in zip(("model run", "sampler run"), runs):
            ax.plot(x, curve, LOOK[name][2], color=LOOK[name][0], lw=1.7, label=name, **frame)
        ax.plot(*point, **STAR, label="recommended (point C)", **frame)
        if i == given:
            ax.plot(*point, **STAR | {"color": "white", "mec": INK, "zorder": 5},
                    gid="given-length", label=f"at the given {optima[i].workload.length:,} tokens")
    ax.set(xlim=(0, right), xlabel=LABEL["max_num_seqs"],
           ylabel="KV cache pool (GiB)" if pool else "peak activation, P (GiB)")
    if not pool:
        ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(THOUSANDS)
    return _legend(ax)


def shows_pool(model) -> bool:
    """Whether the law is drawn as the pool: no level of P is known, only its differences."""
    return bool(model.launches) and all(f.peak_activation is None for f in model.launches)


def branch_of(model, fitted) -> str:
    """The run that sets the peak of a launch; "either run" where the launches cannot tell."""
    return f"{fitted.branch} run" if is_known(model.k1) or is_known(model.k2) else "either run"


def _curves(model, max_num_seqs, max_num_batched_tokens):
    """(model run, sampler run) in GiB, as P or as the pool each leaves; NaN where unknown."""
    seqs, tokens = np.broadcast_arrays(max_num_seqs, max_num_batched_tokens)
    if shows_pool(model):
        pair = map(unumpy.nominal_values, model.pools(seqs, tokens))
    else:
        pair = (model_run(tokens, model.k1.n, model.a1.n),
                sampler_run(tokens, seqs, model.k2.n, model.a2.n, model.k.n))
    return [curve / GIB for curve in pair]


def _draw_law(ax, model, optimum, along, held):
    best, pool = optimum.recommended, shows_pool(model)
    symbol, larger, word = ("pool", np.fmin, "smaller") if pool else ("P", np.fmax, "larger")
    tried = [value for f in model.launches if (value := getattr(f.launch, along))]
    levels = Counter(value for f in model.launches if (value := getattr(f.launch, held)))
    level = getattr(best, held) if best else max(levels, key=lambda v: (levels[v], v), default=1)
    mark = getattr(best, along) if best else 0
    right = max(1.6 * mark, 1.06 * max(tried, default=0)) or 256
    x = np.unique(np.r_[np.linspace(0, right), tried, mark, np.minimum([level, *levels], right)])
    runs = zip(("model run", "sampler run"), _curves(model, **{along: x, held: level}))
    runs = {name: curve for name, curve in runs if np.isfinite(curve).all()}
    if len(runs) == 2:
        ax.plot(x, larger(*runs.values()), color=INK, lw=4, alpha=0.3,
                label=f"{symbol}, the {word} of both")
    for name, curve in runs.items():
        ax.plot(x, curve, LOOK[name][2], color=LOOK[name][0], lw=1.7, label=name)
    others = sorted(set(levels) - {level}) if runs else []
    for value in others:
        ax.plot(x, larger(*_curves(model, **{along: x, held: value})), color=GREY, lw=0.8, zorder=1,
                label=f"{symbol} at another {SHORT[held]}")
    ax.set(xlim=(0, right), xlabel=LABEL[along],
           ylabel="KV cache pool (GiB)" if pool else "peak activation, P (GiB)")
    ax.xaxis.set_major_formatter(THOUSANDS)
    _draw_launches(ax, model, along, held, level, set(others if len(others) <= 4 else []))
    if best:
        height = larger(*_curves(model, best.max_num_seqs, best.max_num_batched_tokens))
        ax.plot(mark, height, **STAR, label="recommended (point C)")
        ax.annotate(f"C: mns {best.max_num_seqs:,}, mnbt {best.max_num_batched_tokens:,}\n"
                    f"{symbol} = {height:.3g} GiB", (mark, height), (12, 12 if pool else -12),
                    textcoords="offset points", va="bottom" if pool else "top", zorder=7)
    return _legend(ax)


def _draw_launches(ax, model, along, held, level, named):
    """Launches where they were measured: filled at ``level``, hollow elsewhere, with rounding."""
    pool = shows_pool(model)
    sign = 1 if pool == (model.route == "kv_only") else -1  # the residual is that of the reading
    drawn = [f for f in model.launches if getattr(f.launch, along)]
    for fitted in sorted(drawn, key=lambda f: getattr(f.launch, along)):
        x, mine = getattr(fitted.launch, along), getattr(fitted.launch, held)
        y = (fitted.kv_cache if pool else fitted.peak_activation) + sign * fitted.residual
        branch, hollow = branch_of(model, fitted), mine not in (level, None)
        ax.errorbar(x, y / GIB, model.unit / 2 / GIB, fmt=LOOK[branch][3], color=LOOK[branch][0],
                    ms=6, mfc="white" if hollow else LOOK[branch][0], capsize=3, zorder=5,
                    label=f"launch, {branch}" + f", other {SHORT[held]}" * hollow)
        if mine in named:
            named.remove(mine)
            side, shift = ("left", 7) if x < ax.get_xlim()[1] / 2 else ("right", -7)
            ax.annotate(f"{SHORT[held]} {mine:,}", (x, y / GIB), (shift, 4), fontsize=7, ha=side,
                        textcoords="offset points", color="#555555", zorder=4,
                        bbox={"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.8})
    low, high = ax.get_ylim()
    ax.set_ylim(*((0.995 * low, 1.005 * high) if pool else (0, 1.04 * high)))
    notes = [f"{name.upper()} is not known: {model.reasons[name]}." for name in ("k1", "k2")
             if not is_known(getattr(model, name))]
    notes.append(f"Error bars: printed rounding, ±{model.unit / 2 / GIB:.2g} GiB, hidden where "
                 "smaller than the marker." if drawn else f"No launch gives its {along}.")
    _say(ax, " ".join(notes))


def residuals(model, ax=None):
    """Measured - predicted of each launch, with the band of the printed rounding around zero."""
    ax = _axes(ax, 2.8)
    widest = max([model.unit / 2, *(abs(f.residual) for f in model.launches)])
    size, unit = next((scale for scale in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
                       if widest >= scale[0] / 10), (1, "bytes"))
    ax.set(xlabel="launch: mns (requests) / mnbt (tokens)", ylabel="measured - predicted\n" + (
        "KV cache pool" if model.route == "kv_only" else "peak activation") + f" ({unit})")
    if not model.launches:
        return _say(ax, "No launch could be used.", instead=True)
    half, flags = model.unit / 2 / size, []
    ax.axhspan(-half, half, color="#dddddd", label=f"printed rounding, ±{half:.3g} {unit}")
    ax.axhline(0, color=INK, lw=0.8)
    for i, fitted in enumerate(model.launches):
        branch = branch_of(model, fitted)
        ax.plot([i, i], [0, fitted.residual / size], color=LOOK[branch][0], lw=1.2)
        ax.plot(i, fitted.residual / size, LOOK[branch][3], color=LOOK[branch][0],
                label=f"{branch} sets P")
        flags.append(f"{fitted.launch.max_num_seqs or '?'}/{fitted.launch.max_num_batched_tokens}")
    many = len(flags) > 10
    ax.set_xticks(range(len(flags)), flags, rotation=90 * many, fontsize=6.5 if many else 8)
    ax.set(xlim=(-0.6, len(flags) - 0.4), ylim=(-1.25 * widest / size, 1.25 * widest / size))
    if model.dof <= 0:
        _say(ax, "As many parameters as launches: the law passes through all, which tests nothing.")
    return _legend(ax, below=7.5 if many else 4.4)


def budget_bars(model, optimum, ax=None):
    """One GPU's memory as stacked bars, GiB: at the recommended flags and at vLLM's default flags.

    Without an answer: the launches with the largest and the smallest pool, as printed. Weights and
    non-torch memory that are not both printed are one segment, total x utilization less the rest.
    """
    ax = _axes(ax, 2.6)
    ax.set_xlabel("memory of one GPU (GiB)")
    bars = list(_bars(model, optimum))
    if not bars:
        return _say(ax, "No bar: it needs the pool and the peak of a launch, and total_memory_gib "
                    "with gpu_memory_utilization, or model_weights_gib with non_torch_gib.", True)
    whole = max(np.fmax(sum(parts.values()), total) for _, parts, _, total in bars) / GIB
    for y, (_, parts, ceiling, total) in enumerate(bars):
        left = last = 0.0
        for name, size in ((name, size / GIB) for name, size in parts.items() if size > 0):
            ax.barh(y, size, 0.5, left, color=LOOK[name][0], hatch=LOOK[name][1], ec="w", lw=0.5,
                    label=f"activation ({name})" if name.endswith("run") else name)
            where = (left + size / 2, y)
            if size < 0.06 * whole:
                last = max(where[0], last + 0.08 * whole)
                where = (last, y - 0.42)
                ax.plot([left + size / 2, last], [y - 0.25, y - 0.33], color=GREY, lw=0.6)
            ax.text(*where, f"{size:.2f}", ha="center", va="center", fontsize=8,
                    bbox={"fc": "white", "ec": "none", "pad": 1, "alpha": 0.85})
            left += size
        if total > ceiling:
            ax.barh(y, (total - ceiling) / GIB, 0.5, ceiling / GIB, fc="none", ec=GREY, ls=":",
                    label=f"above the utilization ceiling, {(total - ceiling) / GIB:.2f} GiB")
        ax.plot([ceiling / GIB] * 2, [y - 0.32, y + 0.32], color=INK, lw=1.5)
    ax.set_yticks(range(len(bars)), [label for label, *_ in bars])
    ax.set(ylim=(len(bars) - 0.5, -0.7), xlim=(0, 1.02 * whole))
    return _legend(ax)


def _bars(model, optimum):
    """(label, {segment: bytes}, ceiling, total) of each bar that can be drawn; total may be NaN."""
    best, states = optimum.recommended, []
    total, share, weights, non_torch = (
        next((v for f in model.launches if (v := getattr(f.launch, name)) is not None), math.nan)
        for name in ("total_memory", "gpu_memory_utilization", "model_weights", "non_torch"))
    if best:
        flags = [("recommended", best.max_num_seqs, best.max_num_batched_tokens),
                 ("vLLM default", *default_flags(total))]
        for label, seqs, tokens in flags[:1 + (total > 0)]:
            pools = dict(zip(("model run", "sampler run"), model.pools(seqs, tokens)))
            branch = min(pools, key=lambda run: pools[run].n)
            peak = peak_activation(tokens, seqs, model.k1.n, model.a1.n, model.k2.n, model.a2.n,
                                   model.k.n)
            states.append((label, seqs, tokens, branch, peak, pools[branch].n))
    else:
        printed = [f for f in model.launches if f.launch.kv_cache is not None]
        printed.sort(key=lambda f: -f.launch.kv_cache)
        states = [("as launched", f.launch.max_num_seqs, f.launch.max_num_batched_tokens, branch_of(
            model, f), f.launch.peak_activation or math.nan, f.launch.kv_cache)
            for f in printed[::max(1, len(printed) - 1)]]
    for label, seqs, tokens, branch, peak, pool in states:
        rest = {branch: peak, "CUDA graphs": model.graph_charge, "KV cache": pool}
        fixed = {"weights": weights, "non-torch": non_torch} if weights + non_torch > 0 else {
            "weights and non-torch": total * share - sum(rest.values())}
        whole = sum(fixed.values()) + sum(rest.values())
        if math.isfinite(whole):
            yield (f"{label}\nmns {f'{seqs:,}' if seqs else '?'} / mnbt {tokens:,}", fixed | rest,
                   total * share if total * share > 0 else whole, total)


def price_list(optimum, ax=None):
    """Requests that still fit the pool at each token budget, and the recommended point."""
    ax, best = _axes(ax, 2.8), optimum.recommended
    ax.set(xlabel=LABEL["max_num_batched_tokens"], ylabel="mns that fits (requests)")
    if not best:
        return _say(ax, f"No price list: {optimum.reason}.", instead=True)
    budgets = np.log2([price.max_num_batched_tokens for price in optimum.prices])
    fit = [price.max_num_seqs for price in optimum.prices]
    ax.bar(budgets, fit, 0.62, color="#dcdcdc", edgecolor=GREY)
    for budget, seqs in zip(budgets, fit):
        ax.annotate(f"{seqs:,}", (budget, 0), (0, 4), textcoords="offset points", ha="center")
    ax.plot(math.log2(best.max_num_batched_tokens), best.max_num_seqs, **STAR,
            label=f"recommended: mns {best.max_num_seqs:,}, mnbt {best.max_num_batched_tokens:,}")
    ax.set_xticks(budgets, [f"{price.max_num_batched_tokens:,}" for price in optimum.prices])
    ax.set_ylim(0, 1.15 * max(*fit, best.max_num_seqs))
    return _legend(ax)


def sensitivity(model, workload, ax=None):
    """C* (left) and B* (right) against request length; the band: one-sided 95 % bounds of C*."""
    ax, optimum = _axes(ax, 3.0), find_optimum(model, workload)
    ax.set(xlabel="length of a finished request, L = input + output (tokens)",
           ylabel="C* (requests at once)")
    if optimum.max_num_seqs is None or optimum.max_num_seqs.n <= 0:
        return _say(ax, f"No curve: {optimum.reason}.", instead=True)
    lengths = workload.length * 2.0 ** np.linspace(-2, 2, 65)
    lengths = [length for length in lengths if model.request_forms(length)]
    seqs, tokens = (np.array(values) for values in zip(*(
        optimum_of(model, length) for length in lengths)))
    middle, half = unumpy.nominal_values(seqs), one_sided_quantile(model) * unumpy.std_devs(seqs)
    thin = " (thinner than the line)" * bool(np.all(half < 0.004 * middle.max()))
    ax.fill_between(lengths, middle - half, middle + half, color="#0072B2", alpha=0.25, lw=0,
                    label=f"95 % bounds of C*{thin}")
    ax.plot(lengths, middle, color="#0072B2", lw=1.8, label="C*, left axis")
    ax.axvline(workload.length, color=INK, ls=":", label=f"given: {workload.length:,} tokens")
    ax.plot([], [], "--", color="#D55E00", lw=1.6, label="B*, right axis")
    right = ax.twinx()
    right.plot(lengths, unumpy.nominal_values(tokens), "--", color="#D55E00", lw=1.6)
    right.set(ylabel="B* (tokens a step)", ylim=(0, 1.35 * unumpy.nominal_values(tokens).max()))
    right.spines.right.set_visible(True)
    right.grid(visible=False)
    ax.set_xscale("log", base=2)
    ax.set(xlim=(lengths[0], lengths[-1]), xticks=lengths[::16], ylim=(0, 1.05 * (middle + half).max()))
    for axis in (ax.xaxis, ax.yaxis, right.yaxis):
        axis.set_major_formatter(THOUSANDS)
    return _legend(ax, ncols=4)
