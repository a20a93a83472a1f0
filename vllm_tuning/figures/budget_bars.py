"""The memory of one GPU as bars: weights, non-torch memory, activation, CUDA graphs, KV cache."""

import math
from dataclasses import dataclass

from matplotlib.patches import Rectangle

from ..budget import filled
from ..launch import first_known
from ..law import peak_activation
from ..releases import default_flags
from ..units import GIB
from .style import GREY, INK, LOOK, axes_of, branch_of, legend, say

DEFAULT = "vLLM default"

ABOVE = "above the utilization ceiling"

_SEGMENT = {
    "weights": "weights",
    "non_torch": "non-torch",
    "activation": "peak activation",
    "cuda_graphs": "CUDA graphs",
    "pool": "KV cache",
}


def budget_bars(model, optimum, ax=None, chosen=None, part=None):
    """One GPU's memory as stacked bars, GiB: at the recommended flags and at vLLM's default flags.

    Without an answer: the launches with the largest and the smallest pool, as printed. Weights and
    non-torch memory that are not both printed are one segment, total x utilization less the rest.
    ``chosen``: other flags (mns, mnbt), which get a bar too. ``part`` as in ``figures.figure_1``.
    """
    ax = axes_of(ax, 2.6)
    ax.set_xlabel("memory of one GPU (GiB)")
    if bars := budgets(model, optimum, chosen):
        return _draw(bars, ax, part)
    return say(
        ax,
        "No bar: it needs the pool and the peak of a launch, and total_memory_gib "
        "with gpu_memory_utilization, or model_weights_gib with non_torch_gib.",
        True,
    )


def estimated_bars(budgets, ax=None):
    """Bars of {label: Budget}, GiB; an error bar is the 90 % band of where the pool begins."""
    ax, bars = axes_of(ax), []
    for label, budget in budgets.items():
        parts = {_SEGMENT[part.name]: part.value for part in (*budget.parts, budget.pool)}
        segments = {name: size for name, size in parts.items() if size > 0}
        bars.append(Bar(label, segments, budget.requested, budget.total_memory))
    _draw(bars, ax)
    for y, budget in enumerate(budgets.values()):
        pool = budget.pool
        if pool.spread:
            ax.errorbar(
                (budget.requested - pool.value) / GIB,
                y + 0.33,
                color=INK,
                capsize=3,
                xerr=(pool.high - pool.value) / GIB,
                label="90 % band of the estimate",
            )
    ax.set(ylim=(len(bars) - 0.5, -0.7), xlabel="memory of one GPU (GiB)")
    return legend(ax)


def _draw(bars, ax, part=None):
    """``Bar``s as stacked bars, GiB; sizes stand in the segments, small ones in words above."""
    whole = max(bar.whole for bar in bars) / GIB
    for y, bar in enumerate(bars):
        if bar.still and part == "moving":
            continue
        moving = {"animated": part is not None and not bar.still}
        side = ax.get_yaxis_transform()
        ax.text(-0.01, y, bar.label, transform=side, ha="right", va="center", **moving)
        small, left = [], 0.0
        above = bar.whole - max(bar.ceiling, sum(bar.segments.values()))
        for name, size in (bar.segments | ({ABOVE: above} if above > 0.005 * GIB else {})).items():
            size /= GIB
            look = {"fc": "none", "ec": GREY, "ls": ":"}
            if name != ABOVE:
                look = {"fc": LOOK[name][0], "hatch": LOOK[name][1], "ec": "w", "lw": 0.5}
            label = f"activation ({name})" if name.endswith("run") else name
            ax.add_patch(Rectangle((left, y - 0.25), size, 0.5, label=label, **look, **moving))
            if size < 0.06 * whole:
                small.append(f"{label} {size:.2f}")
            else:
                box = {"fc": "white", "ec": "none", "pad": 1, "alpha": 0.85}
                middle = {"ha": "center", "va": "center", "fontsize": 8, "bbox": box}
                ax.text(left + size / 2, y, f"{size:.2f}", **middle, **moving)
            left += size
        ax.text(0, y - 0.4, "; ".join(small), va="center", fontsize=8, **moving)
        ax.plot([bar.ceiling / GIB] * 2, [y - 0.32, y + 0.32], color=INK, lw=1.5, **moving)
    ax.set(ylim=(len(bars) - 0.5, -0.7), xlim=(0, 1.02 * whole), yticks=[])
    return ax if part == "moving" else legend(ax)


@dataclass(frozen=True)
class Bar:
    """One bar: bytes of each segment above 0, the utilization ceiling, and the whole card.

    ``still``: the requests do not move it.
    """

    label: str
    segments: dict[str, float]
    ceiling: float
    whole: float
    still: bool = False


def budgets(model, optimum, chosen=None) -> list[Bar]:
    """The bars of ``budget_bars`` that can be drawn."""
    launches = [fitted.launch for fitted in model.launches]
    total, share, weights, non_torch = (
        first_known(launches, name, math.nan)
        for name in ("total_memory", "gpu_memory_utilization", "model_weights", "non_torch")
    )
    bars = []
    for label, seqs, tokens, branch, peak, pool in _states(model, optimum, chosen, total):
        rest = {branch: peak, "CUDA graphs": float(model.graph_charge(seqs or 1)), "KV cache": pool}
        fixed = (
            {"weights": weights, "non-torch": non_torch}
            if weights + non_torch > 0
            else {"weights and non-torch": None}
        )
        parts = filled(total * share, fixed | rest)
        if math.isfinite(used := sum(parts.values())):
            segments = {name: size for name, size in parts.items() if size > 0}
            bars.append(
                Bar(
                    f"{label}\nmns {f'{seqs:,}' if seqs else '?'}\nmnbt {tokens:,}",
                    segments,
                    total * share if total * share > 0 else used,
                    max(sum(segments.values()), total if total > 0 else 0),
                    label == DEFAULT,
                )
            )
    return bars


def _states(model, optimum, chosen, total):
    """(label, mns, mnbt, branch, P, pool) of each bar, bytes."""
    best = optimum.recommended
    if not best:
        printed = [f for f in model.launches if f.launch.kv_cache is not None]
        printed.sort(key=lambda f: -f.launch.kv_cache)
        for f in printed[:: max(1, len(printed) - 1)]:
            yield (
                "launch",
                f.launch.max_num_seqs,
                f.launch.max_num_batched_tokens,
                branch_of(model, f),
                f.launch.peak_activation or math.nan,
                f.launch.kv_cache,
            )
        return
    flags = {
        "recommended": (best.max_num_seqs, best.max_num_batched_tokens),
        "chosen": chosen,
        DEFAULT: default_flags(total) if total > 0 else None,
    }
    for label, (seqs, tokens) in ((label, both) for label, both in flags.items() if both):
        pools = dict(zip(("model run", "sampler run"), model.pools(seqs, tokens), strict=True))
        branch = min(pools, key=lambda run: pools[run].n)
        peak = peak_activation(
            tokens,
            seqs,
            *(getattr(model, name).n for name in ("k1", "a1", "k2", "a2", "k", "few")),
        )
        yield label, seqs, tokens, branch, peak, pools[branch].n
