"""The command line: parse, call, print. Exit 0; 2 on bad usage; 1 with one line on bad input."""

import contextlib
import errno
import json
import sys
from itertools import repeat

import click

from .units import GIB, InputError, parse_size


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


class _GiB(click.ParamType):
    name = "GIB"

    def convert(self, value, param, ctx):
        try:
            size = float(value)
        except ValueError:
            size = 0.0
        if not 0 < size < 2**20:
            self.fail(f"{value!r} is not a size in GiB above 0", param, ctx)
        return size * GIB


class _Arrival(click.ParamType):
    name = "arrival"

    def convert(self, value, param, ctx):
        kind, _, number = value.partition(":")
        try:
            if kind == "poisson" and 0 < float(number) < float("inf"):
                return kind, float(number)
            if kind == "closed" and parse_size(number) > 0:
                return kind, parse_size(number)
            if value == "burst":
                return kind, None
        except ValueError:
            pass
        self.fail(f"{value!r}; write burst, closed:64 (in flight) or poisson:2.5 (a second)", param,
                  ctx)


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
    progress = _on_a_terminal()
    for done in write_reports(by_model(launches), input_len, output_len, folder, config=config):
        if progress:
            click.echo(f"{done.notebook}", err=True)
        if len(launches) > 1:
            click.echo(click.style(f"{done.html.stem}: ", bold=True), nl=False)
        click.echo(answer_text(done.optimum, click.style))
        click.echo(f"\nReport: {done.html}")


@main.command()
@click.argument("config")
@click.option("--gpu-memory", type=_GiB(), help="Memory of one GPU as vLLM prints it.")
@click.option("--gpu", metavar="NAME", help="Or its name, such as H100 or A100-40GB.")
@click.option("--utilization", type=click.FloatRange(0, 1, min_open=True), metavar="U",
              help="gpu_memory_utilization.")
@click.option("--max-model-len", type=_Size(), metavar="N", help="Default: the model's.")
@click.option("--max-num-seqs", type=_Size(), metavar="N", help="Default: vLLM's on such a GPU.")
@click.option("--max-num-batched-tokens", type=_Size(), metavar="N", help="Likewise.")
@click.option("--kv-cache-dtype", metavar="TYPE", help="auto, fp8, ...")
@click.option("--tensor-parallel-size", type=click.IntRange(1, 4096), default=1, metavar="N")
@click.option("--pipeline-parallel-size", type=click.IntRange(1, 4096), default=1, metavar="N")
@click.option("--decode-context-parallel-size", type=click.IntRange(1, 4096), default=1,
              metavar="N")
@click.option("--block-size", type=click.IntRange(1, 2**20), default=16, metavar="N")
@click.option("--vllm-version", metavar="V", help="The release, such as 0.19.0.")
@click.option("--weights", type=_GiB(), help="Of one GPU; else the safetensors index or a count.")
@click.option("--kv-cache-gib", "kv_cache", type=_GiB(), help="The pool as printed.")
@click.option("--launches", multiple=True, metavar="LAUNCHES",
              help="A server log or table: its figures are measured, not estimated.")
@click.option("--input-len", type=_Size(), metavar="N", help="Prompt tokens of a request.")
@click.option("--output-len", type=_Size(), metavar="N", help="Generated tokens of a request.")
@click.option("--lengths", metavar="FILE", help="Requests: CSV, JSONL or a /metrics scrape.")
@_json
def budget(config, gpu, input_len, output_len, lengths, launches, as_json, **flags):
    """Where each gibibyte of a GPU goes, and what the KV cache holds, from a config.json.

    No launch is needed: what is estimated says so, with a 90 % band.
    """
    from .admission import lengths_of
    from .capacity import capacity, launch_to_measure
    from .estimates import TOTAL_MEMORY
    from .terminal import capacity_text
    from .workload import Workload

    if flags["utilization"] is not None and not flags["utilization"] > 0:
        raise click.UsageError("--utilization: expected a number above 0, at most 1")
    if (input_len is None) != (output_len is None) or (input_len and lengths):
        raise click.UsageError("give --input-len and --output-len together, or --lengths")
    if gpu is not None and (name := gpu.upper().replace(" ", "-")) not in TOTAL_MEMORY:
        raise click.UsageError(f"--gpu {gpu}: known are {', '.join(TOTAL_MEMORY)}; else give "
                               "--gpu-memory GIB as vLLM prints it")
    requests = ([Workload(input_len, output_len)] if input_len else
                lengths_of(lengths) if lengths else [])
    answer = capacity(config, gpu=gpu and name, lengths=tuple(requests), **flags,
                      launch=launch_to_measure(launches) if launches else None)
    click.echo(_dump(answer) if as_json else capacity_text(answer, click.style))


@main.command()
@click.argument("launches", nargs=-1)
@click.option("--workload", metavar="FILE", help="A JSON file of config and requests (or .gz).")
@click.option("--trace", "output", metavar="OUT", help="Write what every step does, as JSON.")
@click.option("--max-num-seqs", type=_Size(), metavar="N",
              help="With LAUNCHES: else as recommended.")
@click.option("--max-num-batched-tokens", type=_Size(), metavar="N",
              help="With LAUNCHES: else what is free of charge.")
@click.option("--num-gpu-blocks", type=_Size(), metavar="N",
              help="The pool, as vLLM prints it; or name LAUNCHES.")
@click.option("--input-len", type=_Size(), metavar="N", help="Prompt tokens of a request.")
@click.option("--output-len", type=_Size(), metavar="N", help="Generated tokens of a request.")
@click.option("--lengths", metavar="FILE", help="Both for each request: a CSV or JSONL of "
              "prompt_tokens and output_tokens.")
@click.option("--requests", type=_Size(), metavar="N", help="How many; of a FILE the first N.")
@click.option("--arrival", type=_Arrival(), metavar="burst|closed:N|poisson:RATE", default="burst",
              help="All at once (the default), N in flight, or at random, RATE a second.")
@click.option("--step-time", type=float, metavar="S", help="Seconds a step takes, for poisson.")
@click.option("--seed", type=click.IntRange(0), metavar="N", default=0, help="Of poisson (0).")
@click.option("--block-size", type=_Size(), metavar="N", help="Else of the launches, or 16.")
@click.option("--max-model-len", type=_Size(), metavar="N",
              help="Else of the launches, or a request's length.")
@click.option("--watermark", type=float, metavar="X", help="Part of the pool that stays free.")
@click.option("--long-prefill-token-threshold", type=click.IntRange(0), metavar="N",
              help="The largest chunk of a prompt; 0 is no limit.")
@click.option("--prefix-caching/--no-prefix-caching", "enable_prefix_caching", default=None,
              help="Default: without.")
@click.option("--no-chunked-prefill", "enable_chunked_prefill", type=bool, flag_value=False,
              default=None, help="A prompt is taken whole or not yet.")
@_config
@_json
def simulate(launches, workload, output, config, as_json, arrival, step_time, seed, **options):
    """The V1 scheduler on a workload, step by step: preemptions, use of the pool, tokens a step.

    The workload is a FILE (in the format of traces, so that one can be replayed), or requests of
    one length, or of the lengths in a file, on a server with these flags. LAUNCHES tell its pool
    instead of --num-gpu-blocks, and its flags for the length that 95 % of the requests keep to.
    """
    from .replay import config_to_json, read_workload, write_trace
    from .simulation import poisson_arrivals, requests_of
    from .simulation import simulate as run
    from .terminal import simulation_text

    kind, number = arrival
    document = None
    if (kind == "poisson") != (step_time is not None):
        raise click.UsageError("--arrival poisson:RATE and --step-time SECONDS go together")
    if workload:
        if launches or config or kind != "burst" or any(v is not None for v in options.values()):
            raise click.UsageError("--workload FILE has its own server and requests")
        server, requests, document = read_workload(workload)
        count = len(requests)
    else:
        shapes, count = _shapes(*(options.pop(name) for name in (
            "lengths", "requests", "input_len", "output_len")))
        server = _server(launches, config, shapes, **options)
        for request in requests_of(shapes):
            server.check(request)
        requests = requests_of(shapes if len(shapes) == count else repeat(shapes[0], count))
        if kind == "poisson":
            requests = poisson_arrivals(requests, number, step_time, seed)
    with _progress(count) as progress:
        done = run(server, requests, number if kind == "closed" else None, bool(output), progress)
    if output:
        write_trace(output, done, document)
    click.echo(json.dumps({"config": config_to_json(server), "summary": done.summary.to_dict()},
                          indent=2, allow_nan=False) if as_json
               else simulation_text(done, click.style))


def _shapes(lengths, requests, input_len, output_len):
    """The lengths of all requests, or the one that they have; and how many requests."""
    from .workload import Workload, read_lengths

    if lengths is None:
        if None in (requests, input_len, output_len):
            raise click.UsageError("give --workload, --lengths, or --input-len, --output-len and "
                                   "--requests")
        return [Workload(input_len, output_len)], requests
    if (input_len, output_len) != (None, None):
        raise click.UsageError("--lengths and --input-len, --output-len exclude each other")
    shapes = read_lengths(lengths)
    if requests and requests > len(shapes):
        raise InputError(f"{lengths}: has {len(shapes):,} requests, fewer than --requests "
                         f"{requests:,}")
    return shapes[:requests], requests or len(shapes)


def _server(launches, config, shapes, num_gpu_blocks, **options):
    """The flags to simulate: given, or those of LAUNCHES with the pool expected at them."""
    from .scheduler_config import SchedulerConfig

    flags = {name: value for name, value in options.items() if value is not None}
    if bool(launches) == bool(num_gpu_blocks):
        raise click.UsageError("give either --num-gpu-blocks or LAUNCHES")
    longest = {"max_model_len": max(shape.length for shape in shapes)}
    if launches:
        from .memory_model import model_of
        from .optimum import find_optimum
        from .simulation import server_at
        from .workload import at_percentile

        model = model_of(launches, config)
        if not any(fitted.launch.max_model_len for fitted in model.launches):
            flags = longest | flags
        return server_at(find_optimum(model, at_percentile(shapes)), **flags)
    if not {"max_num_seqs", "max_num_batched_tokens"} <= flags.keys():
        raise click.UsageError("give --max-num-seqs and --max-num-batched-tokens, or LAUNCHES")
    return SchedulerConfig(num_gpu_blocks=num_gpu_blocks, **longest | flags)


@contextlib.contextmanager
def _progress(count: int):
    """A bar on stderr, on a terminal only; what to call with the number of the newly done."""
    if not _on_a_terminal():
        yield None
        return
    with click.progressbar(length=count, label="requests", file=sys.stderr,
                           update_min_steps=max(1, count // 200)) as bar:
        yield bar.update


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()


def _dump(record) -> str:
    return json.dumps(record.to_dict(), indent=2, allow_nan=False)
