"""A server under load against the rules and the prediction."""

import json
from pathlib import Path

import click

from ..units import InputError
from .options import json_option, progress_bar


@click.command()
@click.argument("metrics", nargs=-1, required=True)
@click.option("--launches", multiple=True, metavar="LAUNCHES",
              help="The server's start-up log, or the launches: its flags and its pool.")
@click.option("--recommendation", metavar="FILE", help="What recommend --json printed.")
@click.option("--baseline", metavar="FILE", help="Compare with an earlier --save-baseline.")
@click.option("--save-baseline", metavar="FILE", help="Write configuration, capacity and load.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True,
              metavar="S", help="Seconds from one sample of a URL to the next.")
@click.option("--duration", type=click.FloatRange(0, 7 * 86400), default=60.0, show_default=True,
              metavar="S", help="How long a URL is sampled; Ctrl-C ends it with what there is.")
@json_option
@click.pass_context
def check(ctx, metrics, launches, recommendation, baseline, save_baseline, interval, duration,
          as_json):
    """Is the server healthy under this load? METRICS: scrapes of /metrics, or its URL.

    Scrapes are files in time order, or a folder of *.prom. Exit 0: healthy, or not known; 3: not
    healthy (a preemption, or the KV cache 90 % full); 1: bad input. A URL that asks for a bearer
    token gets the one in the environment variable VLLM_TUNING_TOKEN.
    """
    from ..load.baseline import compare, read_baseline, save_baseline as save
    from ..load.check import check as judge
    from ..load.server import read_recommendation
    from ..load.text import check_text

    # What is wrong with a file is told before the sampling, not after it.
    predicted = read_recommendation(recommendation) if recommendation else None
    earlier = read_baseline(baseline) if baseline else None
    _check_files(launches, save_baseline)
    verdict = judge(_window(metrics, interval, duration), launches, predicted)
    changes = compare(earlier, verdict) if earlier else None
    if save_baseline:
        save(save_baseline, verdict)
    if as_json:
        answer = verdict.to_dict()
        if baseline:
            answer["baseline"] = [vars(change) for change in changes]
        click.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        click.echo(check_text(verdict, changes, click.style))
    ctx.exit(3 if verdict.healthy is False else 0)


def _check_files(launches, save_baseline):
    from ..sources import read_source

    if "-" in launches:
        raise InputError("-: check reads its launches twice; save the log to a file first")
    for source in launches:
        read_source(source)
    if save_baseline and not Path(save_baseline).absolute().parent.is_dir():
        raise InputError(f"{save_baseline}: no such folder to write to")


def _window(metrics, interval, duration):
    from ..load.metrics import read_scrapes
    from ..load.sampling import is_url, sample, samples
    from ..load.window import Window

    if not any(map(is_url, metrics)):
        return Window(tuple(read_scrapes(metrics)))
    if len(metrics) > 1:
        raise click.UsageError("METRICS is one URL, or files")
    with progress_bar(samples(interval, duration), "samples") as progress:
        return sample(metrics[0], interval, duration, progress)
