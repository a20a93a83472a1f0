"""A server under load against the rules and the prediction."""

import json

import click

from .options import Number, json_option, progress_bar


@click.command()
@click.argument("metrics", nargs=-1, required=True)
@click.option(
    "--launches",
    multiple=True,
    metavar="LAUNCHES",
    help="The server's start-up log, or the launches: its flags and its pool.",
)
@click.option("--recommendation", metavar="FILE", help="What recommend --json printed.")
@click.option("--baseline", metavar="FILE", help="Compare with an earlier --save-baseline.")
@click.option("--save-baseline", metavar="FILE", help="Write configuration, capacity and load.")
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
    recommendation,
    baseline,
    save_baseline,
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
    from ..load import compare, read_baseline, read_recommendation
    from ..load import save_baseline as save
    from ..report import check_text

    # What is wrong with a file is said before the sampling, not after it.
    predicted = read_recommendation(recommendation) if recommendation else None
    earlier = read_baseline(baseline) if baseline else None
    launches = _check_files(launches, [save_baseline, keep])
    verdict = judge(_window(metrics, interval, duration, keep), launches, predicted)
    changes = compare(earlier, verdict) if earlier else None
    if as_json:
        answer = verdict.to_dict()
        if baseline:
            answer["baseline"] = changes
        click.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        click.echo(check_text(verdict, changes, click.style))
    if save_baseline:
        save(save_baseline, verdict)
    ctx.exit(3 if verdict.healthy is False else 0)


def _check_files(launches, outputs):
    from ..reading import check_writable, sources_of

    for output in filter(None, outputs):
        check_writable(output)
    return sources_of(launches) if launches else []


def _window(metrics, interval, duration, keep):
    from ..load import is_url, sample, samples
    from ..reading import Window, read_scrapes, write_whole

    if not any(map(is_url, metrics)):
        if keep:
            raise click.UsageError("--keep is for the samples of a URL")
        return Window(tuple(read_scrapes(metrics)))
    if len(metrics) > 1:
        raise click.UsageError("METRICS is one URL, or files")
    with progress_bar(samples(interval, duration), "samples") as progress:
        window = sample(metrics[0], interval, duration, progress, kept := [])
    if keep:
        write_whole(keep, "".join(kept))
    return window
