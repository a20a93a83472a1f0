"""The answer and the fit as text of at most 80 columns; ``paint(text, **style)`` colours it."""

import textwrap
from pathlib import Path

from ..memory_model import MemoryModel
from ..optimum import Optimum, Recommended
from ..units import GIB, is_known, with_error

WIDTH = 80


def plain(text: str, **_style) -> str:
    return text


def answer_text(optimum: Optimum, paint=plain) -> str:
    """The recommended flags, the pool to expect, the three steps, prices and warnings."""
    lines = [
        paint(
            f"Requests of {optimum.workload.input_len:,} + {optimum.workload.output_len:,} "
            f"= {optimum.workload.length:,} tokens",
            bold=True,
        ),
        "",
    ]
    best, model = optimum.recommended, optimum.model
    if best:
        lines += [
            paint(f"  {best.flags}", bold=True, fg="green"),
            "",
            f"  {pool_to_expect(best)} of KV cache to expect:",
            *wrapped(
                f"{best.concurrency:,.1f} full requests, so {best.max_num_seqs} at once never "
                f"preempt ({optimum.proviso})",
                plain,
            ),
        ]
    else:
        reason = optimum.reason[0].upper() + optimum.reason[1:]
        lines += [
            *wrapped(f"No recommendation. {reason}.", paint, fg="yellow"),
            "",
            *_parameters(model, paint),
        ]
    if best or not optimum.method.reason:
        lines += ["", *_steps(optimum)]
        if optimum.method.reason:
            lines += wrapped(f"(no four-launch method: {optimum.method.reason})", plain)
    if best:
        lines += [
            "",
            "What a larger prefill budget costs (mnbt: mns that still fit):",
            *wrapped(
                ", ".join(
                    f"{price.max_num_batched_tokens}: {price.max_num_seqs}"
                    for price in optimum.prices
                ),
                plain,
            ),
        ]
    return "\n".join([*lines, *_next_steps(model, paint), *_warnings(optimum.notices, paint)])


def pool_to_expect(best: Recommended) -> str:
    """GiB, and the tokens with their standard error where they are known."""
    gib = f"{best.kv_cache / GIB:.2f} GiB"
    return (
        gib
        if best.kv_cache_tokens is None
        else (f"{gib}, {best.kv_cache_tokens:,} +- {best.kv_cache_tokens_stderr:,.0f} tokens")
    )


def _steps(optimum: Optimum) -> list[str]:
    seed, best = optimum.method, optimum.recommended
    rows = [
        ("", "max-num-seqs", "max-num-batched-tokens"),
        (
            "four-launch method",
            *(
                ["-"] * 2
                if seed.reason
                else map(with_error, (seed.max_num_seqs, seed.max_num_batched_tokens))
            ),
        ),
        (
            "refined",
            *(
                with_error(value) if value is not None else "-"
                for value in (optimum.max_num_seqs, optimum.max_num_batched_tokens)
            ),
        ),
        (
            "recommended",
            *(
                (f"{best.max_num_seqs:,}", f"{best.max_num_batched_tokens:,}")
                if best
                else ("-", "-")
            ),
        ),
    ]
    return [f"  {name:<20}{seqs:>24}{tokens:>28}".rstrip() for name, seqs, tokens in rows]


def _parameters(model: MemoryModel, paint) -> list[str]:
    lines, unknown = [], {}
    for name, unit in (
        ("k1", "bytes per token"),
        ("a1", "bytes"),
        ("k2", "bytes per request"),
        ("a2", "bytes"),
        ("k", "bytes per token"),
    ):
        value = getattr(model, name)
        symbol = name.upper() if name in ("k1", "k2") else name
        note = f" ({model.k_source})" if name == "k" else ""
        if is_known(value):
            lines.append(f"  {symbol:<3}{with_error(value):>30} {unit}{note}")
        else:
            unknown.setdefault(model.reasons.get(name, ""), []).append(symbol)
    for reason, symbols in unknown.items():
        lines += wrapped(f"{', '.join(symbols)} not known: {reason}", paint, fg="yellow")
    if cost := model.request_cost:
        lines += ["", "  A request costs:"] + [
            f"  {with_error(value):>33} bytes {what}" for value, what in cost.in_words
        ]
    return lines


def launches_text(launches, notices, paint=plain) -> str:
    """One line a launch: flags, pool and the figures behind it in GiB; then what must be said."""
    lines = [
        paint(
            f"  {'mns':>6}{'mnbt':>8}{'weights':>9}{'N':>7}{'P':>7}{'KV':>8}{'tokens':>12}  log",
            bold=True,
        )
    ]
    server = None
    for launch in launches:
        if server != (server := _server(launch)):
            lines += wrapped(server, plain)
        gib = [
            f"{value / GIB:.2f}" if (value := getattr(launch, name)) is not None else "-"
            for name in ("model_weights", "non_torch", "peak_activation", "kv_cache")
        ]
        counts = [
            f"{value:,}" if (value := getattr(launch, name)) else "-"
            for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_tokens")
        ]
        lines.append(
            f"  {counts[0]:>6}{counts[1]:>8}{gib[0]:>9}{gib[1]:>7}{gib[2]:>7}{gib[3]:>8}"
            f"{counts[2]:>12}  {_shortened(Path(launch.where).name, 19)}"
        )
        lines += wrapped(f"failed: {launch.error}", paint, fg="yellow") if launch.error else []
    return "\n".join([*lines, *_warnings(notices, paint)])


def _server(launch) -> str:
    """What was started: model, release, split and utilization, those that are known."""
    parts = [
        (launch.model, "{}"),
        (launch.vllm_version, "vLLM {}"),
        (launch.tensor_parallel_size, "TP {}"),
        (launch.pipeline_parallel_size, "PP {}"),
        (launch.gpu_memory_utilization, "utilization {:g}"),
        (launch.max_model_len, "max_model_len {:,}"),
    ]
    return (
        ", ".join(
            form.format(value)
            for value, form in parts
            if value and (value, form[:2]) not in ((1, "TP"), (1, "PP"))
        )
        + ":"
    )


def _shortened(text: str, width: int) -> str:
    """Both ends of a text that is too long."""
    head = width // 2 - 1
    return text if len(text) <= width else text[:head] + "..." + text[head + 3 - width :]


def fit_text(model: MemoryModel, paint=plain) -> str:
    """Parameters with their standard errors, then each launch with its branch and residual."""
    lines = [
        paint("P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B)", bold=True),
        "",
        *_parameters(model, paint),
    ]
    if model.route:
        lines += [
            "",
            f"  from {'the printed peak' if model.route == 'peak_activation' else 'KV'}, "
            f"chi2 {model.chi2:.3g} on {model.dof} degrees of freedom",
            "",
            f"  {'mns':>7}{'mnbt':>9}  {'branch':<9}{'P GiB':>9}{'KV GiB':>10}{'residual MiB':>15}",
        ]
    for fitted in model.launches[:40]:
        launch = fitted.launch
        figures = [
            f"{figure / GIB:.3f}" if figure is not None else "-"
            for figure in (fitted.peak_activation, fitted.kv_cache)
        ]
        lines.append(
            f"  {launch.max_num_seqs or '-':>7}{launch.max_num_batched_tokens:>9}  "
            f"{fitted.branch:<9}{figures[0]:>9}{figures[1]:>10}"
            f"{fitted.residual / 2**20:>+15.3f}"
        )
    if len(model.launches) > 40:
        lines.append(f"  ... and {len(model.launches) - 40} more (all with --json)")
    return "\n".join([*lines, *_next_steps(model, paint), *_warnings(model.notices, paint)])


def _next_steps(model: MemoryModel, paint) -> list[str]:
    if not model.next_launches:
        return []
    width = max(len(launch.flags) for launch in model.next_launches)
    return [
        "",
        paint("Launch next, all else equal:", bold=True),
        *(
            f"  {launch.flags:<{width}}   # {launch.why.split(':')[0]}"
            for launch in model.next_launches
        ),
    ]


def _warnings(notices, paint) -> list[str]:
    lines = []
    for notice in notices[:12]:
        lines += ["", *wrapped(f"{notice.name}: {notice.text}", paint, fg="yellow")]
    if len(notices) > 12:
        lines += ["", f"  ... and {len(notices) - 12} more warnings (all with --json)"]
    return lines


def wrapped(text: str, paint, **style) -> list[str]:
    lines = textwrap.wrap(
        text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return [paint(line, **style) for line in lines]
