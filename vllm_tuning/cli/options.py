"""What the commands share: types of options, the options themselves, output."""

import contextlib
import json
import math
import re
import sys

import click

from ..units import GIB, InputError, parse_size


class Size(click.ParamType):
    name = "TOKENS"

    def convert(self, value, param, ctx):
        if isinstance(value, int):
            return value
        try:
            size = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < 1:
            self.fail("must be at least 1", param, ctx)
        return size


class Release(click.ParamType):
    name = "V"

    def convert(self, value, param, ctx):
        return (
            value
            if re.match(r"v?\d+\.\d", value)
            else self.fail(f"{value!r} is not a release such as 0.19.0", param, ctx)
        )


class Gpu(click.ParamType):
    """The name in GPUS of one whose ``figure`` is known; ``else_give``: what to give without."""

    name = "NAME"

    def __init__(self, figure, else_give):
        self.figure, self.else_give = figure, else_give

    def convert(self, value, param, ctx):
        from ..budget import gpu_named

        try:
            return gpu_named(value, self.figure)
        except InputError as error:
            self.fail(f"{error}; else give {self.else_give}", param, ctx)


class Gib(click.ParamType):
    name = "GIB"

    def convert(self, value, param, ctx):
        try:
            size = float(value)
        except ValueError:
            size = 0.0
        if not 0 < size < 2**20:
            self.fail(f"{value!r} is not a size in GiB above 0", param, ctx)
        return size * GIB


class Number(click.FloatRange):
    """A range that nan and inf are not in."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        return (
            number
            if math.isfinite(number)
            else self.fail(f"{value} is not a finite number", param, ctx)
        )


class AtFlags(click.ParamType):
    """MNS/MNBT, such as 256/8192 or 128/8K."""

    name = "MNS/MNBT"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        seqs, slash, tokens = value.partition("/")
        if not slash:
            self.fail(f"{value!r} is not MNS/MNBT, such as 256/8192", param, ctx)
        return tuple(Size().convert(part, param, ctx) for part in (seqs, tokens))


launches_argument = click.argument("launches", nargs=-1, required=True)

config_option = click.option(
    "--config",
    metavar="FILE",
    help="The model's config.json: hidden size and KV bytes of a token. Default: the one beside "
    "the launches.",
)

no_chunked_prefill_option = click.option(
    "--no-chunked-prefill",
    "chunked_prefill",
    is_flag=True,
    default=True,
    flag_value=False,
    help="The server runs without it: mnbt >= max_model_len.",
)


def asked_options(command):
    """Which server the answer is for, where it is not that of most launches."""
    for option in (
        click.option(
            "--block-size", type=click.IntRange(1, 4096), metavar="N", help="Tokens of a KV block."
        ),
        click.option("--kv-cache-dtype", metavar="D", help="One of those of the launches."),
        click.option(
            "--gpu-memory",
            "total_memory",
            type=Gib(),
            help="Memory of one GPU as vLLM prints it, where the launches do not give it.",
        ),
        click.option(
            "--utilization",
            "gpu_memory_utilization",
            type=Number(0, 1, min_open=True),
            metavar="U",
            help="gpu_memory_utilization of the answer. Default: that of most launches.",
        ),
    ):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def gpu_options(command):
    """--gpu-memory, --gpu and --vllm-version: where the server runs."""
    for option in (
        click.option("--vllm-version", type=Release(), help="The release, such as 0.19.0."),
        click.option(
            "--gpu",
            type=Gpu("total_memory", "--gpu-memory GIB as vLLM prints it"),
            help="Or its name, as nvidia-smi prints it or short: H100.",
        ),
        click.option("--gpu-memory", type=Gib(), help="Memory of one GPU as vLLM prints it."),
    ):
        command = option(command)
    return command


def server_options(command):
    """--utilization, --max-model-len and the two parallel sizes: how the server is started."""
    utilization = Number(0, 1, min_open=True)
    for option in (
        click.option("--pipeline-parallel-size", type=click.IntRange(1, 4096), metavar="N"),
        click.option("--tensor-parallel-size", type=click.IntRange(1, 4096), metavar="N"),
        click.option("--max-model-len", type=Size(), metavar="N", help="Default: the model's."),
        click.option(
            "--utilization", type=utilization, metavar="U", help="gpu_memory_utilization."
        ),
    ):
        command = option(command)
    return command


def workload_of(input_len, output_len):
    """The two lengths as a workload, None without both."""
    from ..workload import Workload

    if (input_len is None) != (output_len is None):
        raise click.UsageError("give --input-len and --output-len together")
    return None if input_len is None else Workload(input_len, output_len)


def gone_option(name: str, instead: str):
    """An option of earlier releases, hidden: refused in one line that names what replaces it."""

    def refuse(ctx, _, value):
        if value is not None:
            complain(f"{name} is gone: {instead}")
            ctx.exit(2)

    return click.option(name, hidden=True, is_eager=True, expose_value=False, callback=refuse)


def lengths_options(required: bool):
    """--input-len and --output-len."""

    def add(command):
        for name, text in (
            ("--output-len", "Generated tokens of a request, such as 256 or 1K."),
            ("--input-len", "Prompt tokens of a request, such as 1024 or 8K."),
        ):
            command = click.option(name, type=Size(), required=required, metavar="N", help=text)(
                command
            )
        return command

    return add


def roofline_for(gpu, config, sources, launched, kv_cache_dtype):
    """The bound by the data sheet of a GPU, split as the launches are. Raises InputError."""
    from ..answer import config_beside
    from ..budget import GPUS
    from ..kv_cache import MissingFigure
    from ..launch import first_known
    from ..scheduler import roofline_of

    config = config or (sources and config_beside(sources[0]))
    if not config:
        raise click.UsageError("--gpu needs the model's config.json: give --config FILE")
    if first_known(launched, "pipeline_parallel_size", 1) > 1:
        raise MissingFigure(
            "pipeline stages work at the same time: no bound of a step is known here"
        )
    split = first_known(launched, "tensor_parallel_size", 1)
    return roofline_of(config, GPUS[gpu], split, kv_cache_dtype)


@contextlib.contextmanager
def progress_bar(count: int, label: str = "requests"):
    """A bar on stderr, on a terminal only; what to call with the number of the newly done."""
    if not on_a_terminal():
        yield None
        return
    with click.progressbar(
        length=count, label=label, file=sys.stderr, update_min_steps=max(1, count // 200)
    ) as bar:
        yield bar.update


def on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def dump(record) -> str:
    return json.dumps(record, indent=2, allow_nan=False)


_ODD = re.compile(r"\x1b\[(?:[0-2]|3[0-7])m|[^ -~\n]")  # what click.style writes, and not ASCII


def echo(text: str = "", err: bool = False, nl: bool = True) -> None:
    """The one way of text to a terminal: control characters are shown as escapes, not obeyed."""
    click.echo(_ODD.sub(_shown, text), err=err, nl=nl)


def _shown(found: re.Match) -> str:
    text = found[0]
    own = len(text) > 1 or text.isprintable()
    return text if own else text.encode("unicode_escape").decode()


def complain(problem: str) -> None:
    """A problem as the one line on stderr that it gets, without the colours of a name in it."""
    line = re.sub(r"[^ -~]", _shown, " ".join(problem.split())[:1000])
    echo(f"vllm-tuning: {line}", err=True)
