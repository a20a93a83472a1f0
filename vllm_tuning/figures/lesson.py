"""What the derivation shows beside ``figures``, in the same look: Axes in, Axes out.

``picture`` makes an image of a figure, ``by_hand`` is a table. Where there is no answer each says
why in one sentence.
"""

from dataclasses import replace

import numpy as np
from IPython.display import Image, Markdown
from scipy.stats import norm

from ..four_launches import four_launch_estimate
from ..launch import column
from ..law import peak_activation, request_bytes
from ..pool import Pool
from ..units import GIB, is_known, printed_half_widths, with_error
from .style import GREY, INK, LABEL, LOOK, SHORT, STAR, THOUSANDS, axes_of, legend, rendered, say

MIB = 2**20


DRAWS = 400


_PARTS = {
    "weights": "model_weights",
    "non-torch": "non_torch",
    "peak activation": "peak_activation",
    "KV cache": "kv_cache",
}


def picture(draw, *args, alt: str, height=3.4) -> Image:
    """``draw(*args, ax)`` as a PNG image 7 inches wide, the same bytes for the same data."""
    return Image(
        rendered(draw, *args, height=height, dpi=110, metadata={"Software": None}), alt=alt
    )


def launch_bars(launches, ax=None):
    """The memory of each launch as printed, GiB; the black line is TM*U where both are given."""
    ax = axes_of(ax)
    shown = [launch for launch in launches if launch.kv_cache is not None][:12]
    ax.set_xlabel("memory of one GPU (GiB)")
    if not shown:
        return say(ax, "No bar: no launch prints its pool (kv_cache_gib).", instead=True)
    for y, launch in enumerate(shown):
        left = 0.0
        for part, name in _PARTS.items():
            look = LOOK.get(part, LOOK["either run"])
            size = max(0, getattr(launch, name) or 0) / GIB  # a pool below 0 is no memory
            ax.barh(y, size, 0.66, left, color=look[0], hatch=look[1], ec="w", lw=0.5, label=part)
            left += size
        peak = f" P {launch.peak_activation / GIB:.2f}," if launch.peak_activation else ""
        ax.text(left, y, f"{peak} KV {launch.kv_cache / GIB:.2f}", va="center", fontsize=8)
        if None not in (launch.total_memory, launch.gpu_memory_utilization):
            ax.plot(
                [launch.total_memory * launch.gpu_memory_utilization / GIB] * 2,
                [y - 0.42, y + 0.42],
                color=INK,
                lw=1.6,
            )
    ax.set_yticks(
        range(len(shown)),
        [
            "mns {} / mnbt {}".format(
                launch.max_num_seqs or "?", launch.max_num_batched_tokens or "?"
            )
            for launch in shown
        ],
    )
    ax.set(ylim=(len(shown) - 0.4, -0.6), xlim=(0, 1.3 * ax.dataLim.xmax))
    if lacking := [
        part
        for part, name in _PARTS.items()
        if all(getattr(launch, name) is None for launch in shown)
    ]:
        say(ax, f"Not printed by these launches: {', '.join(lacking)}.")
    return legend(ax, ncols=4)


def law_gaps(model, ax=None):
    """Measured - predicted P of each launch, MiB: plain law (a1 = a2 = k = 0) and whole law."""
    ax = axes_of(ax)
    used = [f for f in model.launches if f.launch.peak_activation is not None]
    ax.set(xlabel=LABEL["max_num_batched_tokens"], ylabel="measured - predicted\nP (MiB)")
    k1, a1, k2, a2, k = (value.n for value in (model.k1, model.a1, model.k2, model.a2, model.k))
    if not used or not np.isfinite([k1, k2]).all():
        return say(ax, "No gap: it needs launches with P and both slopes.", instead=True)
    tokens, seqs, peak = (
        column([f.launch for f in used], name)
        for name in ("max_num_batched_tokens", "max_num_seqs", "peak_activation")
    )
    plain, whole = (
        (peak - peak_activation(tokens, seqs, *terms)) / MIB
        for terms in ((k1, 0, k2, 0, 0), (k1, a1, k2, a2, k))
    )
    for branch in ("model", "sampler"):
        mine, look = np.array([f.branch == branch for f in used]), LOOK[f"{branch} run"]
        ax.plot(
            tokens[mine],
            plain[mine],
            look[3],
            color=look[0],
            mfc="white",
            label=f"plain law, {branch} run sets P",
        )
    ax.plot(tokens, whole, "x", color=INK, ms=5, label="law with a1, a2 and k")
    ax.plot(
        [0, tokens.max()],
        [0, k * tokens.max() / MIB],
        ":",
        color=GREY,
        label=f"k·B, k = {k:,.0f} bytes a token",
    )
    ax.xaxis.set_major_formatter(THOUSANDS)
    return legend(ax, ncols=2)


def sampler_steps(launches, ax=None):
    """P as printed against max_num_seqs, GiB, and what each further request took, in MiB."""
    ax = axes_of(ax)
    known = [launch for launch in launches if launch.peak_activation and launch.max_num_seqs]
    known.sort(key=lambda launch: launch.max_num_seqs)
    ax.set(xlabel=LABEL["max_num_seqs"], ylabel="peak activation, P (GiB)")
    if len(known) < 2:
        return say(ax, "No step: fewer than two launches give max_num_seqs and P.", instead=True)
    seqs, peak = column(known, "max_num_seqs"), column(known, "peak_activation")
    half = printed_half_widths(peak)
    ax.errorbar(
        seqs,
        peak / GIB,
        half / GIB,
        fmt="o-",
        color=LOOK["sampler run"][0],
        capsize=3,
        label="launch, with its printed rounding",
    )
    error = np.hypot(half[1:], half[:-1]) / np.sqrt(3)
    slopes, errors = (step / np.diff(seqs) / MIB for step in (np.diff(peak), error))
    for i in np.flatnonzero(slopes > 2 * errors):
        ax.annotate(
            f"{slopes[i]:.1f} ± {errors[i]:.1f} MiB\na request",
            (seqs[i : i + 2].mean(), peak[i : i + 2].mean() / GIB),
            (10, -8),
            textcoords="offset points",
            fontsize=8,
            va="top",
        )
    ax.set(ylim=(0, 1.12 * peak.max() / GIB), xlim=(0, 1.1 * seqs.max()))
    return legend(ax)


def releases(launches, ax=None):
    """P of the same flags on each release, GiB, and what that is for each request, MiB."""
    ax, known = axes_of(ax, 2.4), [launch for launch in launches if launch.peak_activation]
    ax.set_xlabel("peak activation, P (GiB)")
    if not known:
        return say(ax, "No bar: no launch prints P.", instead=True)
    for y, launch in enumerate(known):
        size, seqs, look = launch.peak_activation, launch.max_num_seqs, LOOK["either run"]
        ax.barh(y, size / GIB, 0.6, color=look[0], hatch=look[1], ec="w")
        each = f" = {size / seqs / MIB:.2f} MiB x {seqs:,} requests" if seqs else ""
        ax.text(size / GIB, y, f" {size / GIB:.2f} GiB{each}", va="center", fontsize=8)
    ax.set_yticks(range(len(known)), [f"vLLM {launch.vllm_version or '?'}" for launch in known])
    ax.set(ylim=(len(known) - 0.4, -0.6), xlim=(0, 1.5 * ax.dataLim.xmax))
    return ax


def off_the_point(optimum, along, ax=None):
    """Requests at once, all full, where ``along`` leaves point C and the other flag stays.

    along: "max_num_seqs" or "max_num_batched_tokens". On the right the pool in GiB.
    """
    ax, best = axes_of(ax), optimum.recommended
    held = next(name for name in LABEL if name != along)
    ax.set(xlabel=LABEL[along], ylabel="requests at once, all full")
    if best is None:
        return say(ax, f"No picture: {optimum.reason}.", instead=True)
    pool = Pool(optimum.model, optimum.workload, 1)
    mark, at = getattr(best, along), {held: getattr(best, held)}
    x = np.unique(np.r_[np.linspace(1, 2.4 * mark, 241).astype(int), mark])
    seqs, tokens = ((at | {along: x})[name] + 0 * x for name in LABEL)
    x, seqs, tokens = (values[seqs <= tokens] for values in (x, seqs, tokens))  # vLLM's rule
    holds = np.array(list(map(pool.concurrency, seqs, tokens))).clip(0)
    ax.plot(
        x,
        np.minimum(holds, seqs),
        color=INK,
        lw=4,
        alpha=0.3,
        label="run at once, never preempted: the smaller",
    )
    ax.plot(x, holds, color=LOOK["KV cache"][0], lw=1.8, label="the pool holds")
    ax.plot(x, seqs, "--", color=GREY, lw=1.4, label="mns admits")
    ax.fill_between(
        x,
        holds,
        seqs,
        where=seqs > holds,
        fc="none",
        ec=GREY,
        hatch="....",
        lw=0,
        label="admitted, but not all can be full: preempted",
    )
    ax.plot(mark, min(best.concurrency, best.max_num_seqs), **STAR, label="recommended (point C)")
    ax.set(xlim=(0, x[-1]), ylim=(0, 1.3 * max(holds.max(), best.max_num_seqs)))
    ax.xaxis.set_major_formatter(THOUSANDS)
    request, dearer = map(pool.request_bytes, (1, mark + best.max_num_batched_tokens))
    if request == dearer:
        right = ax.secondary_yaxis(
            "right", functions=(lambda n: n * request / GIB, lambda gib: gib * GIB / request)
        )
        right.set_ylabel("KV cache pool (GiB)")
    return legend(say(ax, f"Held: {SHORT[held]} {at[held]:,}."), ncols=2)


def request_cost(optimum, ax=None):
    """Memory of one request, MiB, at a quarter to four times the given length: KV cache and K2.

    Where A is known, with A over it, the plain law's C*.
    """
    ax, model = axes_of(ax), optimum.model
    ax.set(xlabel="length of a finished request, L (tokens)", ylabel="memory of one request (MiB)")
    if optimum.recommended is None:
        return say(ax, f"No picture: {optimum.reason}.", instead=True)
    budget = optimum.recommended.max_num_batched_tokens
    lengths = dict.fromkeys(
        max(1, optimum.workload.length * factor // 4) for factor in (1, 2, 4, 8, 16)
    )
    lengths = [length for length in lengths if is_known(model.request_bytes(length, 1))]
    for x, length in enumerate(lengths):
        kv, slice_ = model.request_bytes(length, budget).n / MIB, model.k2.n / MIB
        for part, size, under, name in (
            ("KV cache", kv, 0, "KV cache, L·κ"),
            ("sampler run", slice_, kv, "slice of the sampler, K2"),
        ):
            look = LOOK[part]
            ax.bar(x, size, 0.6, under, color=look[0], hatch=look[1], ec="w", label=name)
        left = (model.left_over.n - model.graph_charge) / MIB
        over = f"\nA / it = {left / (kv + slice_):,.1f}" * is_known(model.left_over)
        ax.annotate(
            f"{kv + slice_:,.1f} MiB\nsampler {100 * slice_ / (kv + slice_):.0f} %{over}",
            (x, kv + slice_),
            (0, 3),
            ha="center",
            textcoords="offset points",
            fontsize=8,
        )
    ax.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    ax.set_ylim(0, 1.28 * (kv + slice_))
    return legend(ax)


def rounding_spread(printed, exact, ax=None):
    """C* by the four-launch formula over logs that print the same, and from the exact bytes.

    printed, exact: optima of the same launches as the log prints them, and to the byte.
    """
    ax, seed = axes_of(ax), printed.method
    ax.set(xlabel="C* (requests)", ylabel=f"draws of {DRAWS}")
    if reason := seed.reason or printed.reason or exact.method.reason or exact.reason:
        return say(ax, f"No spread: {reason}.", instead=True)
    middle, error = seed.max_num_seqs.n, seed.max_num_seqs.s
    _, edges, _ = ax.hist(
        _formula_over_equal_logs(printed),
        30,
        color="#dcdcdc",
        ec=GREY,
        label="four-launch formula, over true figures that are printed the same",
    )
    x = np.linspace(middle - 4 * error, middle + 4 * error, 200)
    ax.plot(
        x,
        DRAWS * (edges[1] - edges[0]) * norm.pdf(x, middle, error),
        color=INK,
        label=f"its standard error as propagated: {with_error(seed.max_num_seqs)}",
    )
    ax.axvline(
        exact.method.max_num_seqs.n,
        ls="--",
        color=LOOK["model run"][0],
        lw=1.8,
        label=f"four-launch formula, exact bytes: {exact.method.max_num_seqs.n:,.2f}",
    )
    ax.axvline(
        printed.max_num_seqs.n,
        color=LOOK["KV cache"][0],
        lw=3,
        label=f"refined, printed: {with_error(printed.max_num_seqs)}",
    )
    ax.axvline(
        exact.max_num_seqs.n,
        ls=":",
        color=INK,
        lw=1.5,
        label=f"refined, exact bytes: {exact.max_num_seqs.n:,.4f}",
    )
    return legend(ax, ncols=1)


def _formula_over_equal_logs(optimum) -> np.ndarray:
    """C* of the four-launch formula for true figures drawn evenly within the printed rounding."""
    random, fitted = np.random.default_rng(0), optimum.model.launches
    half = {
        name: printed_half_widths(column([f.launch for f in fitted], name))
        for name in ("total_memory", "model_weights", "non_torch", "peak_activation", "kv_cache")
    }

    def drawn(launch, i):
        return replace(
            launch,
            **{
                name: value + width[i] * random.uniform(-1, 1)
                for name, width in half.items()
                if (value := getattr(launch, name)) is not None
            },
        )

    return np.array(
        [
            four_launch_estimate(
                [replace(f, launch=drawn(f.launch, i)) for i, f in enumerate(fitted)],
                optimum.workload.length,
            ).max_num_seqs.n
            for _ in range(DRAWS)
        ]
    )


def by_hand(optimum) -> Markdown:
    """The four-launch formula with its numbers, and both balances checked, as a table."""
    seed, length = optimum.method, optimum.workload.length
    if seed.reason:
        return Markdown(f"No four-launch formula for these launches: {seed.reason}.")
    seqs, tokens = seed.max_num_seqs, seed.max_num_batched_tokens
    request = [request_bytes(length, seed.kv_bytes_per_token, slice_) for slice_ in (0, seed.k2)]
    rows = [
        ("A", "left over by weights and driver", seed.a / GIB, "GiB"),
        ("\\kappa", "KV / KVS", seed.kv_bytes_per_token, "bytes a token"),
        ("K_1", "slope of group 2", seed.k1, "bytes a token"),
        ("K_2", "slope of group 1", seed.k2, "bytes a request"),
        ("L\\,\\kappa + K_2", f"one request of {length:,} tokens", request[1], "bytes"),
        ("C^*", "A over the line above", seqs, "requests"),
        ("B^*", "C\\* times K2 over K1", tokens, "tokens"),
        ("K_1\\,B^*", "peak of the model run", seed.k1 * tokens / GIB, "GiB"),
        ("K_2\\,C^*", "peak of the sampler run: the same", seed.k2 * seqs / GIB, "GiB"),
        ("A - K_1\\,B^*", "the pool", (seed.a - seed.k1 * tokens) / GIB, "GiB"),
        ("L\\,\\kappa\\,C^*", "C\\* full requests: the same", request[0] * seqs / GIB, "GiB"),
    ]
    head = "| | is | value ± standard error | unit |\n| --- | --- | ---: | --- |\n"
    return Markdown(
        head
        + "\n".join(
            f"| ${symbol}$ | {what} | {with_error(value).replace('+-', '±')} | {unit} |"
            for symbol, what, value, unit in rows
        )
    )
