"""From a config.json to the memory budget."""

import click

from .options import (
    Gib,
    Size,
    dump,
    echo,
    gpu_options,
    json_option,
    lengths_options,
    server_options,
    workload_of,
)


@click.command()
@click.argument("config")
@gpu_options
@server_options
@click.option("--max-num-seqs", type=Size(), metavar="N", help="Default: vLLM's on such a GPU.")
@click.option("--max-num-batched-tokens", type=Size(), metavar="N", help="Likewise.")
@click.option("--dtype", metavar="TYPE", help="Of weights and activations: auto, float32, ...")
@click.option("--kv-cache-dtype", metavar="TYPE", help="auto, fp8, ...")
@click.option("--decode-context-parallel-size", type=click.IntRange(1, 4096), metavar="N")
@click.option("--block-size", type=click.IntRange(1, 2**20), metavar="N")
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

    if input_len and lengths:
        raise click.UsageError("--lengths and --input-len, --output-len exclude each other")
    work = workload_of(input_len, output_len)
    requests = [work] if work else lengths_of(lengths) if lengths else []
    answer = capacity(
        config,
        gpu=gpu,
        lengths=tuple(requests),
        **flags,
        launch=launch_to_measure(launches) if launches else None,
    )
    echo(dump(answer.to_dict()) if as_json else capacity_summary(answer).as_text(click.style))
