"""The scheduler on a workload."""

import os
from itertools import repeat

import click

from ..units import InputError, parse_size
from .options import (
    Gpu,
    Size,
    config_option,
    dump,
    echo,
    gone_option,
    json_option,
    lengths_options,
    progress_bar,
    roofline_for,
)


class Arrival(click.ParamType):
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
        return self.fail(
            f"{value!r}; write burst, closed:64 (in flight) or poisson:2.5 (a second)", param, ctx
        )


@click.command()
@click.argument("launches", nargs=-1)
@click.option("--workload", metavar="FILE", help="A JSON file of config and requests (or .gz).")
@click.option("--trace", "output", metavar="OUT", help="Write what every step does, as JSON.")
@click.option(
    "--max-num-seqs", type=Size(), metavar="N", help="With LAUNCHES: else as recommended."
)
@click.option(
    "--max-num-batched-tokens",
    type=Size(),
    metavar="N",
    help="With LAUNCHES: else what is free of charge.",
)
@click.option(
    "--num-gpu-blocks",
    type=Size(),
    metavar="N",
    help="The pool, as vLLM prints it; or name LAUNCHES.",
)
@lengths_options(required=False)
@click.option(
    "--lengths",
    metavar="FILE",
    help="Both for each request: a CSV or JSONL of prompt_tokens and output_tokens.",
)
@click.option("--requests", type=Size(), metavar="N", help="How many; of a FILE the first N.")
@click.option(
    "--arrival",
    type=Arrival(),
    metavar="burst|closed:N|poisson:RATE",
    default="burst",
    help="All at once (the default), N in flight, or at random, RATE a second.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", default=0, help="Of poisson (0).")
@click.option(
    "--step-time",
    type=float,
    metavar="S",
    help="Seconds that each step takes: for poisson, and for the times.",
)
@gone_option(
    "--load-runs",
    "vllm-tuning throughput will take its place; until then give --step-time S or --gpu NAME",
)
@click.option(
    "--gpu",
    type=Gpu("tensor_rate", "--step-time S"),
    help="Or a GPU such as H100: with the model's config.json the least that a step can take.",
)
@click.option("--block-size", type=Size(), metavar="N", help="Else of the launches, or 16.")
@click.option(
    "--max-model-len", type=Size(), metavar="N", help="Else of the launches, or a request's length."
)
@click.option("--watermark", type=float, metavar="X", help="Part of the pool that stays free.")
@click.option(
    "--long-prefill-token-threshold",
    type=click.IntRange(0),
    metavar="N",
    help="The largest chunk of a prompt; 0 is no limit.",
)
@click.option(
    "--prefix-caching/--no-prefix-caching",
    "enable_prefix_caching",
    default=None,
    help="Default: without.",
)
@click.option(
    "--no-chunked-prefill",
    "enable_chunked_prefill",
    type=bool,
    flag_value=False,
    default=None,
    help="A prompt is taken whole or not yet.",
)
@config_option
@json_option
def simulate(launches, workload, output, config, as_json, arrival, step_time, gpu, seed, **options):
    """The V1 scheduler on a workload, step by step: preemptions, use of the pool, tokens a step.

    It counts steps. With --step-time or --gpu it gives throughput, time to first token (TTFT) and
    time per further token (TPOT) too.

    The workload is a FILE (in the format of traces, so that one can be replayed), or requests of
    one length, or of the lengths in a file, on a server with these flags. LAUNCHES give its pool
    instead of --num-gpu-blocks, and its flags for the length that 95 % of the requests keep to.
    """
    from ..answer import model_of
    from ..reading import check_writable, sources_of
    from ..report import simulation_summary
    from ..scheduler import (
        config_to_json,
        poisson_arrivals,
        read_workload,
        requests_of,
        times_to_json,
        write_trace,
    )
    from ..scheduler import simulate as run

    kind, number = arrival
    document = None
    if kind == "poisson" and step_time is None:
        raise click.UsageError(
            "--arrival poisson:RATE needs --step-time SECONDS, for a rate is a second's"
        )
    if step_time is not None and gpu:
        raise click.UsageError("--step-time and --gpu exclude each other")
    if config and not (gpu or launches):
        raise click.UsageError("--config FILE is read for --gpu or LAUNCHES only")
    if workload is not None:
        if launches or kind != "burst" or any(v is not None for v in options.values()):
            raise click.UsageError("--workload FILE has its own server and requests")
        if output and os.path.exists(output) and os.path.samefile(workload, output):
            raise click.UsageError("--trace would overwrite the --workload FILE")
        server, requests, document = read_workload(workload)
        count, model = len(requests), None
    else:
        shapes, count = _shapes(
            *(options.pop(name) for name in ("lengths", "requests", "input_len", "output_len"))
        )
        launches = sources_of(launches) if launches else []
        model = model_of(launches, config) if launches else None
        server = _server(model, shapes, **options)
        for request in requests_of(shapes):
            server.check(request)
        requests = requests_of(shapes if len(shapes) == count else repeat(shapes[0], count))
        if kind == "poisson":
            requests = poisson_arrivals(requests, number, step_time, seed)
    clock, unknown = _step_time(step_time, gpu, config, launches, model)
    if output is not None:
        check_writable(output)
    with progress_bar(count) as progress:
        done = run(
            server,
            requests,
            number if kind == "closed" else None,
            output is not None,
            progress,
            clock,
        )
    if output is not None:
        write_trace(output, done, document)
    echo(
        dump(
            {
                "config": config_to_json(server),
                "summary": done.summary.to_dict(),
                "times": times_to_json(done.times, unknown),
            }
        )
        if as_json
        else simulation_summary(done, unknown).as_text(click.style)
    )


def _step_time(seconds, gpu, config, launches, model):
    """What a step takes, or None and the reason."""
    from ..kv_cache import MissingFigure
    from ..launch import first_known
    from ..scheduler import GivenStepTime

    if seconds is not None:
        return GivenStepTime(seconds), None
    if gpu is None:
        return None, "a step has no time of its own: give --gpu or --step-time"
    launched = [fitted.launch for fitted in model.launches] if model else []
    dtype = first_known(launched, "kv_cache_dtype")
    try:
        return roofline_for(gpu, config, launches, launched, dtype), None
    except MissingFigure as error:
        return None, str(error)


def _shapes(lengths, requests, input_len, output_len):
    """The lengths of all requests, or the one that they have; and how many requests."""
    from ..reading import read_lengths
    from ..workload import Workload

    if lengths is None:
        if None in (requests, input_len, output_len):
            raise click.UsageError(
                "give --workload, --lengths, or --input-len, --output-len and --requests"
            )
        return [Workload(input_len, output_len)], requests
    if (input_len, output_len) != (None, None):
        raise click.UsageError("--lengths and --input-len, --output-len exclude each other")
    shapes = read_lengths(lengths)
    if requests and requests > len(shapes):
        raise InputError(
            f"{lengths}: has {len(shapes):,} requests, fewer than --requests {requests:,}"
        )
    return shapes[:requests], requests or len(shapes)


def _server(model, shapes, num_gpu_blocks, **options):
    """The flags to simulate: given, or those of the launches with the pool expected at them."""
    from ..scheduler import SchedulerConfig

    flags = {name: value for name, value in options.items() if value is not None}
    if bool(model) == bool(num_gpu_blocks):
        raise click.UsageError("give either --num-gpu-blocks or LAUNCHES")
    longest = {"max_model_len": max(shape.length for shape in shapes)}
    if model:
        from ..answer import find_optimum
        from ..scheduler import server_at
        from ..workload import at_percentile

        if not any(fitted.launch.max_model_len for fitted in model.launches):
            flags = longest | flags
        return server_at(find_optimum(model, at_percentile(shapes)), **flags)
    if not {"max_num_seqs", "max_num_batched_tokens"} <= flags.keys():
        raise click.UsageError("give --max-num-seqs and --max-num-batched-tokens, or LAUNCHES")
    return SchedulerConfig(num_gpu_blocks=num_gpu_blocks, **longest | flags)
