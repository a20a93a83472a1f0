"""A server under load against the rules."""

import click

from ..units import InputError
from .options import Number, dump, echo, gone_option, json_option, progress_bar


@click.command()
@click.argument("metrics", nargs=-1, required=True)
@click.option(
    "--launches",
    multiple=True,
    metavar="LAUNCHES",
    help="The server's start-up log, or the launches: its flags and its pool.",
)
@gone_option("--recommendation", "check --launches LAUNCHES says how many requests fit")
@click.option("--baseline", metavar="FILE", help="Compare with an earlier check --json.")
@gone_option("--save-baseline", "check --json > FILE writes what --baseline reads")
@click.option(
    "--interval",
    type=Number(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds from one sample of a URL to the next.",
)
@click.option(
    "--duration",
    type=Number(0, 7 * 86400),
    default=60.0,
    show_default=True,
    metavar="S",
    help="How long a URL is sampled; Ctrl-C ends it with what there is.",
)
@click.option(
    "--keep",
    metavar="FILE.prom",
    help="Write the samples of a URL with their times, for report --metrics.",
)
@json_option
@click.pass_context
def check(
    ctx,
    metrics,
    launches,
    baseline,
    interval,
    duration,
    keep,
    as_json,
):
    """Is the server healthy under this load? METRICS: scrapes of /metrics, or its URL.

    Scrapes are files in time order, or a folder of *.prom. Exit 0: healthy, or not known; 3: not
    healthy (a preemption, or the KV cache 90 % full); 1: bad input. A URL that asks for a bearer
    token gets the one in the environment variable VLLM_TUNING_TOKEN.
    """
    from ..load import check as judge
    from ..load import compare, read_baseline
    from ..reading import check_writable
    from ..report import check_summary

    # What is wrong with a file is said before the sampling, not after it.
    earlier = read_baseline(baseline) if baseline else None
    records, model, notices = _launches(launches)
    if keep:
        check_writable(keep)
    verdict = judge(_series(metrics, interval, duration, keep), records, model, notices)
    changes = compare(earlier, verdict) if earlier else None
    if as_json:
        answer = verdict.to_dict()
        if baseline:
            answer["baseline"] = changes
        echo(dump(answer))
    else:
        echo(check_summary(verdict, changes).as_text(click.style))
    ctx.exit(3 if verdict.healthy is False else 0)


def _launches(named):
    """The launches, the memory model of several, and what is to be said of it."""
    from ..answer import model_of
    from ..diagnosis import Notice
    from ..reading import sources_of

    sources = sources_of(named) if named else []
    launches = [launch for source in sources for launch in source.launches]
    if len(launches) < 2:
        return launches, None, []
    try:
        return launches, model_of(sources), []
    except InputError as error:
        text = f"the launches make no memory model: {error}"
        return launches, None, [Notice("no_model", text)]


def _series(metrics, interval, duration, keep):
    from ..load import is_url, sample, samples
    from ..reading import ScrapeSeries, read_scrapes, write_whole

    if not any(map(is_url, metrics)):
        if keep:
            raise click.UsageError("--keep is for the samples of a URL")
        return ScrapeSeries(tuple(read_scrapes(metrics)))
    if len(metrics) > 1:
        raise click.UsageError("METRICS is one URL, or files")
    with progress_bar(samples(interval, duration), "samples") as progress:
        series = sample(metrics[0], interval, duration, progress, kept := [])
    if keep:
        write_whole(keep, "".join(kept))
    return series
