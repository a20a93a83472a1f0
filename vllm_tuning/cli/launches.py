"""From server logs to launches, a memory model, flags and reports."""

import click

from ..units import InputError
from .options import (
    AtFlags,
    asked_options,
    complain,
    config_option,
    dump,
    echo,
    gone_option,
    json_option,
    launches_argument,
    lengths_options,
    no_chunked_prefill_option,
    on_a_terminal,
)


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Write a launches.csv.")
@json_option
def read(logs, output, as_json):
    """Launches out of vLLM server logs of any release (plain, .gz, a folder, - for stdin)."""
    from ..diagnosis import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, notices
    from ..reading import logs_in, read_log, write_launches
    from ..report import launch_json, launches_summary

    launches, bad = [], []
    for log in logs:
        try:
            launches += [launch for each in logs_in(log) for launch in read_log(each)]
        except InputError as error:
            bad.append(str(error))
    if output and launches:
        write_launches(launches, output)
    if as_json and (launches or not bad):
        echo(dump([launch_json(launch) for launch in launches]))
    elif launches and not output and not as_json:
        said = notices(launches, ABOUT_A_FIGURE | ABOUT_THE_ANSWER)
        echo(launches_summary(launches, said).as_text(click.style))
    for problem in bad:
        complain(problem)
    if bad:
        raise SystemExit(1)


@click.command()
@launches_argument
@click.option("--at", multiple=True, type=AtFlags(), help="Also the pool to expect there.")
@config_option
@asked_options
@json_option
def fit(launches, at, config, as_json, **asked):
    """The memory model of the launches: K1, a1, K2, a2, k, s with standard errors."""
    from ..answer import Asked, model_of
    from ..pool import expected_at
    from ..reading import sources_of
    from ..report import fit_json, fit_summary

    model = model_of(sources_of(launches), config, Asked(**asked))
    pools = [expected_at(model, *flags) for flags in at]
    echo(
        dump(fit_json(model, pools)) if as_json else fit_summary(model, pools).as_text(click.style)
    )


@click.command()
@launches_argument
@lengths_options(required=True)
@config_option
@json_option
@click.option("--yaml", "as_yaml", is_flag=True, help="A file for vllm serve --config.")
@click.option("--args", "as_args", is_flag=True, help="One line of flags for vllm serve.")
@click.option(
    "--sweep",
    metavar="FILE",
    help="Write a few launches around the answer for vllm bench sweep serve --serve-params.",
)
@no_chunked_prefill_option
@asked_options
def recommend(
    launches,
    input_len,
    output_len,
    config,
    as_json,
    as_yaml,
    as_args,
    sweep,
    chunked_prefill,
    **asked,
):
    """The flags for requests of a given length, with the pool to expect."""
    from ..answer import Asked, find_optimum, model_of
    from ..reading import sources_of
    from ..report import answer_summary, recommend_args, recommend_json, recommend_yaml
    from ..workload import Workload

    if as_json + as_yaml + as_args > 1:
        raise click.UsageError("--json, --yaml and --args exclude each other")
    model = model_of(sources_of(launches), config, Asked(**asked))
    optimum = find_optimum(model, Workload(input_len, output_len), chunked_prefill)
    if as_yaml:
        echo(recommend_yaml(optimum), nl=False)
    elif as_args:
        echo(recommend_args(optimum))
    else:
        echo(
            dump(recommend_json(optimum))
            if as_json
            else answer_summary(optimum).as_text(click.style)
        )
    if sweep:
        from ..load import write_sweep

        write_sweep(sweep, optimum)
        if on_a_terminal():
            echo(f"Written: {sweep}", err=True)


@click.command()
@launches_argument
@lengths_options(required=True)
@config_option
@click.option(
    "-o",
    "--output",
    "folder",
    default="reports",
    show_default=True,
    metavar="DIR",
    help="Where NAME.ipynb and NAME.html go.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="FILE",
    help="Scrapes of /metrics under load, in time order, or a folder of *.prom: adds a section.",
)
@click.option(
    "--load-runs",
    multiple=True,
    metavar="FILE",
    help="As throughput takes them: adds what the point costs in tokens a second.",
)
@gone_option("--bench", "give results of vllm bench serve by --load-runs")
def report(launches, input_len, output_len, config, folder, metrics, load_runs):
    """An executed notebook and an HTML page for each model: a table, or all logs of one model."""
    from ..answer import by_model
    from ..reading import sources_of
    from ..report import answer_summary, write_reports

    if "-" in launches:
        raise InputError("-: the notebook reads the launches too; save the log to a file first")
    progress = on_a_terminal()
    for done in write_reports(
        by_model(sources_of(launches)),
        input_len,
        output_len,
        folder,
        config=config,
        metrics=metrics,
        load_runs=load_runs,
    ):
        if progress:
            echo(f"{done.notebook}", err=True)
        if len(launches) > 1:
            echo(click.style(f"{done.html.stem}: ", bold=True), nl=False)
        echo(answer_summary(done.optimum).as_text(click.style))
        echo(f"\nReport: {done.html}")
