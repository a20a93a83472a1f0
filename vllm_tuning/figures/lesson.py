"""What the derivation shows beside the report's figures, in the same look.

``picture`` makes an image of a figure, ``by_hand`` is a table. Where there is no answer each says
why in one sentence.
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
from IPython.display import Image, Markdown

from ..four_launches import four_launch_estimate
from ..launch import column
from ..law import request_bytes
from ..pool import Pool
from ..units import GIB, printed_half_widths, with_error
from .style import GREY, INK, LABEL, LOOK, STAR, THOUSANDS, axes_of, legend, rendered, say

DRAWS = 400


def picture(draw, *args, alt: str, height=3.4) -> Image:
    """``draw(*args, ax)`` as a PNG image 7 inches wide, the same bytes for the same data."""
    return Image(
        rendered(draw, *args, height=height, dpi=110, metadata={"Software": None}), alt=alt
    )


def off_the_point(optimum, ax=None):
    """Requests at once, all full, where mns leaves point C and mnbt stays."""
    ax, best = axes_of(ax), optimum.recommended
    ax.set(xlabel=LABEL["max_num_seqs"], ylabel="requests at once, all full")
    if best is None or optimum.max_num_seqs is None:
        return say(ax, f"No picture: {optimum.reason}.", instead=True)
    pool, budget = Pool(optimum.model, optimum.workload, 1), best.max_num_batched_tokens
    x = np.unique(
        np.r_[np.linspace(1, 2.4 * best.max_num_seqs, 241), best.max_num_seqs].astype(int)
    )
    x = x[x <= budget]  # vLLM's rule
    holds = np.array([pool.concurrency(seqs, budget) for seqs in x]).clip(0)
    both = "run at once, never preempted: the smaller"
    ax.plot(x, np.minimum(holds, x), color=INK, lw=4, alpha=0.3, label=both)
    ax.plot(x, holds, color=LOOK["KV cache"][0], lw=1.8, label="the pool holds")
    ax.plot(x, x, "--", color=GREY, lw=1.4, label="mns admits")
    over = "admitted, but not all can be full: preempted"
    look = {"fc": "none", "ec": GREY, "hatch": "....", "lw": 0, "label": over}
    ax.fill_between(x, holds, x, where=x > holds, **look)
    at = best.max_num_seqs, min(best.concurrency, best.max_num_seqs)
    ax.plot(*at, **STAR, label=best.place)
    ax.set(xlim=(0, x[-1]), ylim=(0, 1.3 * max(holds.max(), best.max_num_seqs)))
    ax.xaxis.set_major_formatter(THOUSANDS)
    return legend(say(ax, f"Held: mnbt {budget:,}."), ncols=2)


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
    expected = f"its standard error as propagated: {with_error(seed.max_num_seqs)}"
    height = DRAWS * (edges[1] - edges[0]) * np.vectorize(NormalDist(middle, error).pdf)(x)
    ax.plot(x, height, color=INK, label=expected)
    for at, colour, style, label in (
        (
            exact.method.max_num_seqs.n,
            LOOK["model run"][0],
            "--",
            f"four-launch formula, exact bytes: {exact.method.max_num_seqs.n:,.2f}",
        ),
        (
            printed.max_num_seqs.n,
            LOOK["KV cache"][0],
            "-",
            f"refined, printed: {with_error(printed.max_num_seqs)}",
        ),
        (
            exact.max_num_seqs.n,
            INK,
            ":",
            f"refined, exact bytes: {exact.max_num_seqs.n:,.4f}",
        ),
    ):
        ax.axvline(at, color=colour, ls=style, lw=3 if style == "-" else 1.6, label=label)
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

    def formula() -> float:
        true = [replace(f, launch=drawn(f.launch, i)) for i, f in enumerate(fitted)]
        seqs = four_launch_estimate(true, optimum.workload.length).max_num_seqs
        assert seqs is not None
        return seqs.n

    return np.array([formula() for _ in range(DRAWS)])


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
