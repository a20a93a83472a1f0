"""Which launches to make, and making them."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import click

from ..units import InputError
from .options import (
    Number,
    dump,
    echo,
    gpu_options,
    json_option,
    lengths_options,
    no_chunked_prefill_option,
    on_a_terminal,
    server_options,
    workload_of,
)


@click.command()
@click.argument("sources", nargs=-1, metavar="[CONFIG] [LAUNCHES]...")
@lengths_options(required=False)
@gpu_options
@server_options
@no_chunked_prefill_option
@json_option
def plan(sources, input_len, output_len, chunked_prefill, as_json, **flags):
    """The launches to make; beside LAUNCHES those that are still missing.

    CONFIG is the model's config.json: without it the widths of a Llama 3 8B are taken.
    """
    from ..measure import plan_launches
    from ..report import missing_summary, plan_summary

    config, launches = _sorted(sources)
    workload, given = workload_of(input_len, output_len), _given(flags)
    if launches:
        found, summary = (
            _missing(launches, config, workload, chunked_prefill, given),
            missing_summary,
        )
    else:
        found, summary = plan_launches(config, workload, chunked_prefill, **given), plan_summary
    echo(dump(found.to_dict()) if as_json else summary(found).as_text(click.style))


def _missing(launches, config, workload, chunked_prefill, given):
    """What is missing beside LAUNCHES."""
    from ..answer import find_optimum, model_of
    from ..measure import missing_for
    from ..reading import sources_of

    sources = sources_of(launches)
    if workload is None:
        raise click.UsageError("LAUNCHES need --input-len and --output-len")
    for name in given:
        if name != "max_model_len":
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"LAUNCHES give it themselves: leave out {option}")
    model = model_of(sources, config)
    made_with = (fitted.launch.max_model_len or 1 for fitted in model.launches)
    longest = given.get("max_model_len") or max(made_with, default=1)
    optimum = find_optimum(model, workload, chunked_prefill)
    return missing_for(optimum, 1 if chunked_prefill else longest)


def _sorted(sources) -> tuple[str | None, list[str]]:
    """CONFIG is a .json file, or a folder with a config.json and without launches."""

    def is_config(source):
        path = Path(source)
        return path.suffix == ".json" or (
            (path / "config.json").is_file() and not (path / "launches.csv").is_file()
        )

    configs = [source for source in sources if is_config(source)]
    if len(configs) > 1:
        raise click.UsageError(f"one CONFIG at most, not {' and '.join(configs)}")
    return (configs or [None])[0], [each for each in sources if each not in configs]


def _given(flags: dict) -> dict:
    return {name: value for name, value in flags.items() if value is not None}


@click.command()
@click.argument(
    "command",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="-- vllm serve MODEL [ARGS]...",
)
@click.option(
    "-o",
    "--output",
    default="launches",
    show_default=True,
    metavar="DIR",
    help="launches.csv and the logs go there; what is there is not made again.",
)
@click.option(
    "--launches",
    "table",
    metavar="FILE",
    help="Launches to make, a CSV of max_num_seqs "
    "and max_num_batched_tokens. Default: those of plan.",
)
@lengths_options(required=False)
@gpu_options
@click.option("--verify", is_flag=True, help="Launch once more with the answer, and compare.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=1800,
    show_default=True,
    metavar="S",
    help="Seconds that a server may take to its figures.",
)
@click.option(
    "--grace",
    type=Number(0),
    default=30,
    show_default=True,
    metavar="S",
    help="Seconds from SIGTERM to SIGKILL.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="The model's config.json. Default: that in MODEL's folder, or in Hugging Face's cache.",
)
@json_option
def measure(
    command, output, table, input_len, output_len, verify, timeout, grace, config, as_json, **gpu
):
    """Make the launches one after another, read their logs, and recommend.

    Flags of the server stand behind --, without --max-num-seqs, --max-num-batched-tokens and
    --port. Stopped in whatever way, the same command goes on where it was.
    """
    from ..answer import find_optimum, model_of
    from ..measure import check_command, interruptible, measured
    from ..report import measured_json, measured_summary

    command, workload = list(command), workload_of(input_len, output_len)
    if verify and workload is None:
        raise click.UsageError("--verify needs --input-len and --output-len")
    check_command(command)

    def solve(folder, chunked_prefill):
        model = model_of([folder])
        return model, find_optimum(model, workload, chunked_prefill) if workload else None

    with interruptible(), _progress() as show:
        try:
            found = measured(
                command,
                output,
                solve=solve,
                show=show,
                table=table,
                workload=workload,
                verify=verify,
                timeout=timeout,
                grace=grace,
                config=config,
                **_given(gpu),
            )
        except KeyboardInterrupt:
            raise InputError(
                "interrupted; the servers are stopped, and the same command goes on "
                f"from what is in {output}"
            ) from None
    echo(dump(measured_json(found)) if as_json else measured_summary(found).as_text(click.style))
    if all(launch.status == "failed" for launch in found.launches):
        raise InputError(f"{found.table}: no launch came up; their reasons stand in it")
    if found.verification and found.verification.launch.status == "failed":
        raise InputError("the check launch did not come up: do not serve with these flags")


@contextmanager
def _progress():
    """One line on stderr, on a terminal only: what is going on and what is known so far."""

    def show(text, done, count):
        if on_a_terminal():
            line = f"launches {done}/{count}  {text}"[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    try:
        yield show
    finally:
        if on_a_terminal():
            echo(err=True)
