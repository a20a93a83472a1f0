"""The report's section under load: prediction, start-up log and load beside one another."""

import math
from functools import partial
from html import escape
from pathlib import Path

from IPython.display import HTML

from ..figures import load as figures
from ..load import Verdict, check, observed_request
from ..optimum import Optimum
from ..reading import BENCH_COLUMNS, ScrapeSeries, read_bench_results, read_scrapes, read_source
from .load_text import NAMES, WORDS, shown
from .sections import figure, table, tag


def load_section(optimum: Optimum, sources, metrics=(), bench=()) -> HTML | None:
    """Verdict, three-way table and time lines of the scrapes; then benchmarks. None of neither."""
    parts = []
    if metrics:
        launches = [launch for source in sources for launch in read_source(source)]
        verdict = check(ScrapeSeries(tuple(read_scrapes(metrics))), launches, optimum.model)
        best = optimum.recommended
        load = {"load": verdict}
        parts += [
            '<h2 id="Under-load">Under load</h2>',
            _verdict(verdict),
            three_way(optimum, verdict),
            figure(
                figures.kv_cache_usage,
                load,
                alt="Use of the KV cache over time, in per cent, with the limit of 90 per cent.",
            ),
            figure(
                partial(figures.requests, recommended=best.max_num_seqs if best else None),
                verdict,
                alt="Requests running and waiting over time, "
                "with max_num_seqs and the number that fits.",
            ),
            figure(figures.preemptions, load, height=2.6, alt="Preemptions over time."),
        ]
    if results := read_bench_results(bench):
        parts += ['<h2 id="Benchmarks">Benchmarks</h2>', bench_table(results)]
    return HTML("\n".join(parts)) if parts else None


def _verdict(verdict: Verdict) -> str:
    rows = [
        (
            NAMES[rule.name],
            shown(rule, rule.measured),
            shown(rule, rule.limit),
            rule.verdict,
            escape(
                f"{rule.change}." if rule.change else "" if rule.verdict == "pass" else rule.why
            ),
        )
        for rule in verdict.rules
    ]
    notes = "".join(f"<li>{escape(notice.text)}</li>" for notice in verdict.notices)
    return (
        f"<p><strong>{WORDS[verdict.healthy]}.</strong> The server is healthy where nothing "
        "was preempted and the KV cache stayed below 90 %; the other rules say more.</p>"
        + table(("rule", "measured", "limit", "verdict", "what to change"), rows)
        + f'<div class="warnings"><ul>{notes}</ul></div>' * bool(notes)
    )


def three_way(optimum: Optimum, verdict: Verdict) -> str:
    """What was predicted, what the start-up log of the server says, what the load showed."""
    best, launch, series = optimum.recommended, verdict.server.launch, verdict.series
    pool, request = verdict.server.pool(series), observed_request(series)
    full, peak = figures.predicted_usage(verdict), series.peak("kv_cache_usage")
    lost, running = verdict.to_dict()["preemptions"], series.peak("running")
    rows = [
        (
            "KV cache (tokens)",
            best and best.kv_cache_tokens,
            launch and launch.kv_cache_tokens,
            pool and pool.tokens,
        ),
        ("requests at once", best and best.max_num_seqs, launch and launch.max_num_seqs, running),
        (
            "request (tokens, p95)" + tag("estimated"),
            optimum.workload.length,
            None,
            request and request.length,
        ),
        ("use of the KV cache, peak", None, full, peak),
        ("preemptions", best and 0, None, lost),
    ]
    cells = [(name, *(_cell(value, name) for value in values)) for name, *values in rows]
    return table(
        (
            "",
            "recommendation" + tag("derived"),
            "start-up log" + tag("measured"),
            "load" + tag("measured"),
        ),
        cells,
    ) + (
        "<p>The use under start-up log is derived: what all that max-num-seqs admits would take "
        "when full.</p>"
        if full
        else ""
    )


def _cell(value, name: str) -> str:
    if value is None:
        return "?"
    return f"{value:.1%}" if name.startswith("use") else f"{value:,.0f}"


def bench_table(results: list[dict]) -> str:
    """Throughput, TTFT and TPOT as vLLM measured them, in HTML; without the empty columns."""
    columns = {
        head: name
        for head, name in BENCH_COLUMNS.items()
        if any(result[name] is not None for result in results)
    }
    return table(
        ["result" + tag("measured"), *columns],
        [
            (
                escape(Path(result["file"]).name),
                *(_shown(result[name]) for name in columns.values()),
            )
            for result in results
        ],
    )


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return (
        "all at once"
        if math.isinf(value)
        else (f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}")
    )
