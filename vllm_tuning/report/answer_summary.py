"""The answer, the fit and the launches behind them."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from ..answer import Answer, Fit
from ..diagnosis import Notice
from ..launch import KNOBS, Launch, serve_flags, short_places
from ..optimum import Recommended
from ..pool import Expected
from ..units import GIB, is_known
from .contract import launch_json
from .summary import Cell, Flags, Paragraph, Summary, Table, text_of, warnings

MOST_LAUNCHES = 40  # of a fit that are listed


def answer_summary(optimum: Answer) -> Summary:
    """The recommended flags, the pool to expect, the three steps, trade-offs and warnings."""
    work = optimum.workload
    asked = f"Requests of {work.input_len:,} + {work.output_len:,} = {work.length:,} tokens"
    asked += _server_asked(optimum.model)
    return (
        Summary(Paragraph(asked, "heading"))
        + recommendation(optimum)
        + trade_offs(optimum)
        + warnings(optimum.notices)
    )


def _server_asked(model: Fit) -> str:
    """What the answer holds for, of that in which the launches differ."""
    parts = [
        f"{name} {value}"
        for name, field, value in (
            ("utilization", "gpu_memory_utilization", model.gpu_memory_utilization),
            ("KV cache dtype", "kv_cache_dtype", model.kv_cache_dtype),
            ("block size", "block_size", model.block_size),
        )
        if len({getattr(fitted.launch, field) for fitted in model.launches}) > 1
    ]
    return f", at {', '.join(parts)}" if parts else ""


def recommendation(optimum: Answer) -> Summary:
    """Flags, pool and the three steps; else why there are none, what to launch, what is known."""
    best, formula = optimum.recommended, optimum.method
    tokens = optimum.max_num_batched_tokens
    apart = tokens is not None and tokens.n <= 0
    steps = (
        ("four-launch formula", "estimated", formula.max_num_seqs, formula.max_num_batched_tokens),
        ("refined", "estimated", optimum.max_num_seqs, None if apart else tokens),
        (
            "recommended",
            "derived",
            best and best.max_num_seqs,
            best and best.max_num_batched_tokens,
        ),
    )
    table = Summary(
        Table(
            ("", "max-num-seqs", "max-num-batched-tokens"),
            [(Cell(name, kind), *values) for name, kind, *values in steps],
        )
    )
    if apart:
        table += Summary(Paragraph("(refined: the branches meet at no positive token budget)"))
    if formula.reason:
        table += Summary(Paragraph(f"(no four-launch formula: {formula.reason})"))
    if best:
        better = next_launches(optimum.model) if best.basis == "bound" else Summary()
        return Summary(Flags([best.flags])) + expected(optimum) + table + better
    reason = (optimum.reason or "")[:1].upper() + (optimum.reason or "")[1:]
    return (
        Summary(Paragraph(f"No recommendation yet. {reason}.", "warning"))
        + next_launches(optimum.model)
        + parameters(optimum.model)
        + (Summary() if formula.reason else table)
    )


def expected(optimum: Answer) -> Summary:
    """The pool at the recommended flags, and the requests that it holds."""
    best = optimum.recommended
    assert best is not None
    return Summary(
        Table(
            (),
            (
                (Cell("KV cache to expect", "estimated"), pool_to_expect(best)),
                (Cell("full requests that it holds", "derived"), f"{best.concurrency:,.1f}"),
                (
                    Cell("at once, never preempted", "derived"),
                    f"{best.max_num_seqs:,} ({best.proviso})",
                ),
            ),
        ),
        *map(Paragraph, _beside(optimum, best)),
    )


def _beside(optimum: Answer, best: Recommended) -> Iterator[str]:
    """What the server must print, what vLLM's own flags would give, and why there is no fit."""
    if best.needed_tokens:
        yield (
            "When the server starts, its log must print a KV cache of at least "
            f"{best.needed_tokens:,} tokens."
        )
    if optimum.default:
        seqs, budget, held = optimum.default
        yield (
            f"vLLM's defaults for this memory, {seqs:,} and {budget:,}, hold {held:,} such "
            f"requests: these flags {best.max_num_seqs - held:+,}."
        )
    if best.basis == "bound":
        yield (
            "One launch shows it: fewer tokens and requests never leave a smaller pool. A fit "
            f"could allow more, but {optimum.reason or 'gives less'}."
        )


def pool_to_expect(best: Recommended) -> str:
    """GiB, and the tokens with their standard error where they are known."""
    gib = f"{best.kv_cache / GIB:.2f} GiB"
    if best.kv_cache_tokens is None:
        return gib
    return f"{gib}, {best.kv_cache_tokens:,} +- {best.kv_cache_tokens_stderr:,.0f} tokens"


def trade_offs(optimum: Answer) -> Summary:
    """What a larger token budget costs; nothing without an answer."""
    if not optimum.prices:
        return Summary()
    return Summary(
        Paragraph("What a larger max-num-batched-tokens costs", "heading"),
        Table(
            (
                "mnbt (tokens)",
                Cell("mns that fits", "derived"),
                "KV cache (GiB)",
                "KV cache (tokens)",
            ),
            [
                (
                    price.max_num_batched_tokens,
                    price.max_num_seqs,
                    f"{price.kv_cache / GIB:.2f}",
                    price.kv_cache_tokens,
                )
                for price in optimum.prices
            ],
        ),
    )


def parameters(model: Fit) -> Summary:
    """The parameters of the law with standard errors, and why those that are missing are."""
    rows: list[tuple] = []
    unknown: dict[str, list[str]] = {}
    for name, meaning in (
        ("k1", "a token of mnbt in the model run"),
        ("a1", "the model run at 0 tokens"),
        ("k2", "a request of mns in the sampler run"),
        ("a2", "the sampler run at 0 requests"),
        ("k", f"the hidden state of a token ({model.k_source})"),
        ("s", f"a request of mns in the model runner ({model.s_source})"),
        ("kv_per_token", "the KV cache of a token"),
    ):
        if name == "kv_per_token" and model.hybrid:
            continue
        if name == "s" and not (model.s.n or model.s.s):
            continue
        symbol = {"k1": "K1", "k2": "K2", "kv_per_token": "KV/KVS"}.get(name, name)
        if is_known(value := model.spread(name)):
            rows.append((symbol, value, meaning))
        else:
            unknown.setdefault(model.reasons.get(name, "the launches do not give it"), []).append(
                symbol
            )
    if cost := model.request_cost:
        rows += [("request", value, words) for value, words in cost.in_words]
    table = Table(("", Cell("bytes", "estimated"), "what takes them"), rows)
    reasons = [
        Paragraph(f"{', '.join(symbols)} not known: {reason}", "warning")
        for reason, symbols in unknown.items()
    ]
    if not model.route:
        return Summary(*[table] * bool(rows), *reasons)
    read = "KV cache" if model.route == "kv_only" else "peak"
    fit = f"Read from the printed {read}: chi2 {model.chi2:.3g} on {model.dof} degrees of freedom."
    return Summary(*[table] * bool(rows), *reasons, Paragraph(fit))


def fit_summary(model: Fit, at: Sequence[Expected] = ()) -> Summary:
    """The parameters, then each launch with the run that sets its peak and its residual."""
    listed = [
        (
            fitted.launch.max_num_seqs,
            fitted.launch.max_num_batched_tokens,
            fitted.branch,
            _gib(fitted.peak_activation, 3),
            _gib(fitted.kv_cache, 3),
            f"{fitted.residual / 2**20:+.3f}",
        )
        for fitted in model.launches[:MOST_LAUNCHES]
    ]
    head = ("mns", "mnbt", "branch", "P (GiB)", "KV (GiB)", "residual (MiB)")
    more = len(model.launches) - MOST_LAUNCHES
    return (
        Summary(Paragraph("P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B)", "heading"))
        + parameters(model)
        + Summary(*[Table(head, listed)] * bool(listed))
        + expected_pools(at, model)
        + Summary(*[Paragraph(f"... and {more} more (all with --json)")] * (more > 0))
        + next_launches(model)
        + warnings(model.notices)
    )


def expected_pools(at: Sequence[Expected], model: Fit) -> Summary:
    """The pool to expect at the flags that were asked for; nothing where none were."""
    share = model.gpu_memory_utilization
    rows = [
        (
            f"{each.max_num_seqs:,} / {each.max_num_batched_tokens:,}",
            "not known"
            if each.kv_cache is None
            else f"{each.kv_cache / GIB:.3f} +- {(each.kv_cache_stderr or 0) / GIB:.3f}",
            each.kv_cache_tokens,
            {"fit": "the fit", "bound": "at least so much, by one launch"}.get(
                each.basis or "", ""
            ),
        )
        for each in at
    ]
    if not rows:
        return Summary()
    where = "" if share is None else f" at utilization {share:g}"
    return Summary(
        Paragraph(f"Pool to expect{where}", "heading"),
        Table(("mns / mnbt", Cell("KV (GiB)", "estimated"), "tokens", "by"), rows),
    )


def next_launches(model: Fit) -> Summary:
    """The launches that would give what is missing; nothing where nothing is."""
    if not model.next_launches:
        return Summary()
    width = max(len(launch.flags) for launch in model.next_launches)
    return Summary(
        Paragraph("Launch next, all other flags as before:", "heading"),
        Flags(
            [
                f"{launch.flags:<{width}}   # {launch.why.split(':')[0]}"
                for launch in model.next_launches
            ]
        ),
    )


def launches_summary(launches: Sequence[Launch], notices: Sequence[Notice] = ()) -> Summary:
    """One row a launch under what was started: flags, pool and the figures behind it in GiB."""
    head = ("mns", "mnbt", "weights", "N", "P", "KV", "tokens", "log")
    summary = Summary()
    for server, group in groupby(launches, _server):
        mine = [*group]
        rows = [
            (
                launch.max_num_seqs,
                launch.max_num_batched_tokens,
                *(
                    _gib(getattr(launch, name))
                    for name in ("model_weights", "non_torch", "peak_activation", "kv_cache")
                ),
                launch.kv_cache_tokens,
                Path(launch.where).name,
            )
            for launch in mine
        ]
        failed = [
            Paragraph(f"{Path(launch.where).name} failed: {launch.error}", "warning")
            for launch in mine
            if launch.error
        ]
        summary += Summary(Paragraph(server, "heading"), Table(head, rows), *failed)
    return summary + warnings(notices)


def _server(launch: Launch) -> str:
    """What was started: model, release, split and utilization, those that are known."""
    parts = [
        (launch.model, "{}"),
        (launch.vllm_version, "vLLM {}"),
        (launch.tensor_parallel_size, "TP {}"),
        (launch.pipeline_parallel_size, "PP {}"),
        (launch.gpu_memory_utilization, "utilization {:g}"),
        (launch.max_model_len, "max_model_len {:,}"),
    ]
    known = [
        form.format(value)
        for value, form in parts
        if value and (value, form[:2]) not in ((1, "TP"), (1, "PP"))
    ]
    return ", ".join(known) or "launches"


def launch_table(launches: list[Launch], model: Fit) -> Summary:
    """The launches as given: what all share in a sentence, what differs in a table."""
    rows = [
        {
            name: "" if value == launch.where or name == "error" else _given(value)
            for name, value in launch_json(launch).items()
        }
        for launch in launches
    ]
    same = {
        name: value
        for name, value in rows[0].items()
        if not name.startswith("max_num") and all(row[name] == value for row in rows)
    }
    head = {name: name.replace("_gib", " (GiB)").replace("_", " ") for name in rows[0]}
    head |= {"max_num_seqs": "mns", "max_num_batched_tokens": "mnbt"}
    known = is_known(model.k1) or is_known(model.k2)
    branch = {f.launch.where: f.branch for f in model.launches if known}
    shared = "; ".join(
        f"{head[name]} {text_of(value)}" for name, value in same.items() if value != ""
    )
    return Summary(
        Paragraph(f"In all launches: {shared}."),
        Table(
            (
                "line",
                *(head[name] for name in rows[0] if name not in same),
                Cell("peak set by", "estimated"),
            ),
            [
                (
                    place,
                    *(row[name] for name in row if name not in same),
                    branch.get(launch.where, "not known"),
                )
                for launch, place, row in zip(launches, short_places(launches), rows, strict=True)
            ],
        ),
    )


def _given(value):
    """A column of launches.csv; an address without its scheme, which would be a link to fetch."""
    if isinstance(value, (list, tuple)):
        value = ", ".join(value)
    return (
        re.sub(r"\w+://", "", value) if isinstance(value, str) else "" if value is None else value
    )


def verification_summary(found) -> Summary:
    """A check launch at the recommended flags: predicted beside printed, and the verdict."""
    flags = serve_flags(*(getattr(found.launch, name) for name in KNOBS))
    return Summary(
        Paragraph(f"Verified with {flags}", "heading"),
        Paragraph(found.verdict, "good" if found.holds else "warning"),
        Table(
            (
                "",
                Cell("predicted", "estimated"),
                Cell("printed", "measured"),
                "within 95 %",
            ),
            [
                (
                    f"{check.name} ({check.unit})",
                    check.predicted,
                    check.measured,
                    check.within if check.within else Cell("no", style="bad"),
                )
                for check in found.checks
            ],
        ),
    )


def _gib(size: float | None, digits: int = 2) -> str | None:
    return None if size is None else f"{size / GIB:.{digits}f}"
