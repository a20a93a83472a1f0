"""The report's section under load: prediction, start-up log and load beside one another."""

import math

from IPython.display import HTML

from ..answer import Answer
from ..figures import load as figures
from ..load import Recommendation, Verdict, check, observed_request
from ..reading import BENCH_COLUMNS, Window, read_bench_results, read_scrapes
from .load_text import NAMES, WORDS, shown
from .sections import figure
from .summary import Cell, Paragraph, Summary, Table, warnings

USE = "use of the KV cache, peak"


def verdict_of(optimum: Answer, sources, metrics) -> Verdict:
    """The verdict on saved scrapes, against the answer and its launches. Raises InputError."""
    best = optimum.recommended
    return check(
        Window(tuple(read_scrapes(metrics))),
        sources,
        Recommendation(
            best.max_num_seqs, best.max_num_batched_tokens, best.kv_cache_tokens, optimum.workload
        )
        if best
        else None,
    )


def load_section(optimum: Answer, sources, metrics=(), bench=()) -> HTML | None:
    """Verdict, three-way table and time lines of the scrapes; then benchmarks. None of neither."""
    parts = []
    if metrics:
        verdict = verdict_of(optimum, sources, metrics)
        load = {"load": verdict}
        parts += [
            '<h2 id="Under-load">Under load</h2>',
            (_verdict(verdict) + three_way(optimum, verdict)).as_html(),
            figure(
                figures.kv_cache_usage,
                load,
                alt="Use of the KV cache over time, in per cent, with the limit of 90 per cent.",
            ),
            figure(
                figures.requests,
                verdict,
                alt="Requests running and waiting over time, "
                "with max_num_seqs and the number that fits.",
            ),
            figure(figures.preemptions, load, height=2.6, alt="Preemptions over time."),
        ]
    if results := read_bench_results(bench):
        parts += ['<h2 id="Benchmarks">Benchmarks</h2>', bench_table(results).as_html()]
    return HTML("\n".join(parts)) if parts else None


def _verdict(verdict: Verdict) -> Summary:
    rows = [
        (
            NAMES[rule.name],
            shown(rule, rule.measured),
            shown(rule, rule.limit),
            rule.verdict,
            f"{rule.change}." if rule.change else "" if rule.verdict == "pass" else rule.why,
        )
        for rule in verdict.rules
    ]
    said = (
        f"{WORDS[verdict.healthy]}. The server is healthy where nothing was preempted and the KV "
        "cache stayed below 90 %; the other rules say more."
    )
    head = ("rule", "measured", "limit", "verdict", "what to change")
    return Summary(Paragraph(said), Table(head, rows)) + warnings(verdict.notices)


def three_way(optimum: Answer, verdict: Verdict) -> Summary:
    """What was predicted, what the start-up log of the server says, what the load showed."""
    best, launch, window = optimum.recommended, verdict.server.launch, verdict.window
    pool, request = verdict.server.pool(window), observed_request(window)
    full, peak = figures.predicted_usage(verdict), window.peak("kv_cache_usage")
    lost, running = verdict.to_dict()["preemptions"], window.peak("running")
    rows = [
        (
            "KV cache (tokens)",
            best and best.kv_cache_tokens,
            launch and launch.kv_cache_tokens,
            pool and pool.tokens,
        ),
        ("requests at once", best and best.max_num_seqs, launch and launch.max_num_seqs, running),
        (
            Cell("request (tokens, p95)", "estimated"),
            optimum.workload.length,
            None,
            request and request.length,
        ),
        (USE, None, full, peak),
        ("preemptions", best and 0, None, lost),
    ]
    head = (
        "",
        Cell("recommendation", "derived"),
        Cell("start-up log", "measured"),
        Cell("load", "measured"),
    )
    table = Table(
        head, [(name, *(_cell(value, name) for value in values)) for name, *values in rows]
    )
    derived = (
        "The use under start-up log is derived: what all that max-num-seqs admits would take when "
        "full."
    )
    return Summary(table, *[Paragraph(derived)] * bool(full))


def _cell(value, name) -> str | None:
    if value is None:
        return None
    return f"{value:.1%}" if name == USE else f"{value:,.0f}"


def bench_table(results: list[dict]) -> Summary:
    """Throughput, TTFT and TPOT as vLLM measured them; without the empty columns."""
    columns = {
        head: name
        for head, name in BENCH_COLUMNS.items()
        if any(result[name] is not None for result in results)
    }
    rows = [
        (
            result["file"].rpartition("/")[2],
            *(_shown(result[name]) for name in columns.values()),
        )
        for result in results
    ]
    return Summary(Table([Cell("result", "measured"), *columns], rows))


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return (
        "all at once"
        if math.isinf(value)
        else (f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}")
    )
