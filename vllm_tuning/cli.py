"""The command line: parse, call, print. Exit 0; 2 on bad usage; 1 with one line on bad input."""

import errno
import json
import sys

import click

from .units import InputError, parse_size


class _Size(click.ParamType):
    name = "TOKENS"

    def convert(self, value, param, ctx):
        if isinstance(value, int):
            return value
        try:
            size = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < 1:
            self.fail("must be at least 1 token", param, ctx)
        return size


class _Commands(click.Group):
    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except InputError as error:
            problem = str(error)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            problem = f"{error.filename or 'output'}: {error.strerror or error}"
        except UnicodeError as error:
            problem = f"a name or a text is not UTF-8: {error}"
        except KeyboardInterrupt:
            problem = "interrupted"
        _complain(problem)
        ctx.exit(1)


def _complain(problem: str) -> None:
    line = " ".join(problem.split())[:1000].encode("utf-8", "replace").decode()
    click.echo(f"vllm-tuning: {line}", err=True)


_sources = click.argument("launches", nargs=-1, required=True)
_config = click.option("--config", metavar="FILE", help="The model's config.json: hidden size and "
                       "KV bytes of a token. Default: the one beside the launches.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def _workload(command):
    for name, text in (("--output-len", "Generated tokens of a request, such as 256 or 1K."),
                       ("--input-len", "Prompt tokens of a request, such as 1024 or 8K.")):
        command = click.option(name, type=_Size(), required=True, help=text)(command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-tuning", prog_name="vllm-tuning")
def main():
    """What to set vLLM's --max-num-seqs and --max-num-batched-tokens to.

    LAUNCHES is a launches.csv, a folder of one, the name of a data set the package carries, or
    vLLM server logs.
    """


@main.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Write a launches.csv.")
@_json
def read(logs, output, as_json):
    """Launches out of vLLM server logs of any release (plain, .gz, - for stdin)."""
    from .explanations import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, notices
    from .launches import write_launches
    from .server_log import read_log
    from .terminal import launches_text

    launches, bad = [], []
    for log in logs:
        try:
            launches += read_log(log)
        except InputError as error:
            bad.append(str(error))
    if output and launches:
        write_launches(launches, output)
    if as_json and (launches or not bad):
        click.echo(json.dumps([launch.to_dict() for launch in launches], indent=2, allow_nan=False))
    elif launches and not output and not as_json:
        said = notices(launches, ABOUT_A_FIGURE | ABOUT_THE_ANSWER)
        click.echo(launches_text(launches, said, click.style))
    for problem in bad:
        _complain(problem)
    if bad:
        raise SystemExit(1)


@main.command()
@_sources
@_config
@_json
def fit(launches, config, as_json):
    """The memory model of the launches: K1, a1, K2, a2, k with standard errors."""
    from .memory_model import model_of
    from .terminal import fit_text

    model = model_of(launches, config)
    click.echo(_dump(model) if as_json else fit_text(model, click.style))


@main.command()
@_sources
@_workload
@_config
@_json
@click.option("--yaml", "as_yaml", is_flag=True, help="A file for vllm serve --config.")
@click.option("--no-chunked-prefill", "chunked_prefill", is_flag=True, default=True,
              flag_value=False, help="The server runs without it: mnbt >= max_model_len.")
def recommend(launches, input_len, output_len, config, as_json, as_yaml, chunked_prefill):
    """The flags for requests of a given length, with the pool to expect."""
    from .memory_model import model_of
    from .optimum import find_optimum
    from .terminal import answer_text
    from .workload import Workload

    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml exclude each other")
    optimum = find_optimum(model_of(launches, config), Workload(input_len, output_len),
                           chunked_prefill)
    if as_yaml:
        click.echo(optimum.to_yaml(), nl=False)
    else:
        click.echo(_dump(optimum) if as_json else answer_text(optimum, click.style))


@main.command()
@_sources
@_workload
@_config
@click.option("-o", "--output", "folder", default="reports", show_default=True, metavar="DIR",
              help="Where NAME.ipynb and NAME.html go.")
def report(launches, input_len, output_len, config, folder):
    """An executed notebook and an HTML page for each model: a table, or all logs of one model."""
    from .report import write_reports
    from .sources import by_model
    from .terminal import answer_text

    if "-" in launches:
        raise InputError("-: report reads its launches twice; save the log to a file first")
    progress = sys.stderr.isatty()
    for done in write_reports(by_model(launches), input_len, output_len, folder, config=config):
        if progress:
            click.echo(f"{done.notebook}", err=True)
        if len(launches) > 1:
            click.echo(click.style(f"{done.html.stem}: ", bold=True), nl=False)
        click.echo(answer_text(done.optimum, click.style))
        click.echo(f"\nReport: {done.html}")


def _dump(record) -> str:
    return json.dumps(record.to_dict(), indent=2, allow_nan=False)
