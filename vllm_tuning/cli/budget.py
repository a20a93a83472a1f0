"""From a config.json to the memory budget."""

import click

from .options import (
    Gib,
    Number,
    Release,
    Size,
    dump,
    echo,
    gpu_option,
    json_option,
    lengths_options,
)


@click.command()
@click.argument("config")
@click.option("--gpu-memory", type=Gib(), help="Memory of one GPU as vLLM prints it.")
@gpu_option
@click.option(
    "--utilization", type=Number(0, 1, min_open=True), metavar="U", help="gpu_memory_utilization."
)
@click.option("--max-model-len", type=Size(), metavar="N", help="Default: the model's.")
@click.option("--max-num-seqs", type=Size(), metavar="N", help="Default: vLLM's on such a GPU.")
@click.option("--max-num-batched-tokens", type=Size(), metavar="N", help="Likewise.")
@click.option("--kv-cache-dtype", metavar="TYPE", help="auto, fp8, ...")
@click.option("--tensor-parallel-size", type=click.IntRange(1, 4096), metavar="N")
@click.option("--pipeline-parallel-size", type=click.IntRange(1, 4096), metavar="N")
@click.option(
    "--decode-context-parallel-size", type=click.IntRange(1, 4096), default=1, metavar="N"
)
@click.option("--block-size", type=click.IntRange(1, 2**20), metavar="N")
@click.option("--vllm-version", type=Release(), help="The release, such as 0.19.0.")
@click.option("--weights", type=Gib(), help="Of one GPU; else the safetensors index or a count.")
@click.option("--kv-cache-gib", "kv_cache", type=Gib(), help="The pool as printed.")
@click.option(
    "--launches",
    multiple=True,
    metavar="LAUNCHES",
    help="A server log or table: its figures are measured, not estimated.",
)
@lengths_options(required=False)
@click.option("--lengths", metavar="FILE", help="Requests: CSV, JSONL or a /metrics scrape.")
@json_option
def budget(config, gpu, input_len, output_len, lengths, launches, as_json, **flags):
    """Where each gibibyte of a GPU goes, and what the KV cache holds, from a config.json.

    No launch is needed: what is estimated says so, with a 90 % band.
    """
    from ..budget import capacity, launch_to_measure
    from ..reading import lengths_of
    from ..report import capacity_summary
    from ..workload import Workload

    if (input_len is None) != (output_len is None) or (input_len and lengths):
        raise click.UsageError("give --input-len and --output-len together, or --lengths")
    requests = (
        [Workload(input_len, output_len)] if input_len else lengths_of(lengths) if lengths else []
    )
    answer = capacity(
        config,
        gpu=gpu,
        lengths=tuple(requests),
        **flags,
        launch=launch_to_measure(launches) if launches else None,
    )
    echo(dump(answer.to_dict()) if as_json else capacity_summary(answer).as_text(click.style))
