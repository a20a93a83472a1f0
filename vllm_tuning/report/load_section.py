"""The report's section under load: prediction, start-up log and load beside one another."""

from functools import partial

from IPython.display import HTML

from ..answer import Answer
from ..figures import load as figures
from ..figures import throughput as curves
from ..load import Verdict, check, observed_request
from ..reading import ScrapeSeries, read_load_runs, read_scrapes, read_source
from ..scheduler import throughput_of
from .load_summary import check_summary, per_cent
from .sections import figure
from .summary import Cell, Paragraph, Summary, Table
from .throughput_summary import throughput_summary


def load_section(optimum: Answer, sources, metrics=(), load_runs=()) -> HTML | None:
    """Verdict, three-way table and time lines of the scrapes; then what the point costs."""
    parts = []
    if metrics:
        launches = [launch for source in sources for launch in read_source(source)]
        verdict = check(ScrapeSeries(tuple(read_scrapes(metrics))), launches, optimum.model)
        best = optimum.recommended
        load = {"load": verdict}
        parts += [
            '<h2 id="Under-load">Under load</h2>',
            (check_summary(verdict) + three_way(optimum, verdict)).as_html(),
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
    if load_runs:
        runs = read_load_runs(load_runs)
        found = throughput_of(optimum, runs)
        parts += [
            '<h2 id="What-the-point-costs">What the point costs</h2>',
            throughput_summary(optimum, found, runs, None).as_html(),
            figure(
                curves.output_tokens,
                found,
                runs,
                alt="Output tokens a second over max_num_seqs, with the load runs and the point.",
            ),
            figure(curves.token_time, found, alt="Time per token over max_num_seqs."),
        ]
    return HTML("\n".join(parts)) if parts else None


def three_way(optimum: Answer, verdict: Verdict) -> Summary:
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
            Cell("request (tokens, p95)", "estimated"),
            optimum.workload.length,
            None,
            request and request.length,
        ),
        ("use of the KV cache, peak", None, per_cent(full), per_cent(peak)),
        ("preemptions", best and 0, None, lost),
    ]
    head = (
        "",
        Cell("recommendation", "derived"),
        Cell("start-up log", "measured"),
        Cell("load", "measured"),
    )
    derived = (
        "The use under start-up log is derived: what all that max-num-seqs admits would take when "
        "full."
    )
    return Summary(Table(head, rows), *[Paragraph(derived)] * bool(full))
