"""What each max_num_seqs costs in throughput and latency, from load runs."""

import click

from ..units import InputError
from .options import (
    Gpu,
    Number,
    Size,
    asked_options,
    config_option,
    dump,
    echo,
    json_option,
    launches_argument,
    lengths_options,
    progress_bar,
    roofline_for,
)


@click.command()
@launches_argument
@lengths_options(required=True)
@click.option(
    "--load-runs",
    multiple=True,
    metavar="FILE",
    help="Of one server at two loads or more: results of vllm bench serve, GuideLLM or AIPerf, "
    "scrapes, or a CSV. Without any, the runs to make.",
)
@click.option("--target-tpot", type=Number(0, min_open=True), metavar="S", help="Seconds a token.")
@click.option("--in-flight", type=Size(), metavar="N", help="Requests that clients keep in flight.")
@click.option("--rate", type=Number(0, min_open=True), metavar="R", help="Requests a second.")
@click.option(
    "--gpu",
    type=Gpu("tensor_rate", "no --gpu"),
    help="With config.json: what its data sheet bounds the throughput by.",
)
@asked_options
@config_option
@json_option
def throughput(
    launches,
    load_runs,
    input_len,
    output_len,
    target_tpot,
    in_flight,
    rate,
    gpu,
    config,
    as_json,
    **asked,
):
    """Output tokens a second and time per token at each max_num_seqs, from two or three load runs.

    The runs are of ONE server; the client limits the requests in flight. Above the method's point
    the scheduler is simulated, for there requests are preempted.
    """
    from ..answer import Asked, find_optimum, model_of
    from ..reading import read_load_runs, sources_of
    from ..report import LoadsToMake, throughput_json, throughput_summary
    from ..scheduler import bound_of, throughput_of
    from ..workload import Workload

    work = Workload(input_len, output_len)
    sources = sources_of(launches)
    model = model_of(sources, config, Asked(**asked))
    answer = find_optimum(model, work)
    if answer.recommended is None:
        raise InputError(f"{sources[0]}: no recommendation to load: {answer.reason}")
    if not load_runs:
        found = LoadsToMake(answer)
        echo(dump(found.to_dict()) if as_json else found.summary().as_text(click.style))
        return
    runs = read_load_runs(load_runs)
    with progress_bar(3) as progress:
        curve = throughput_of(answer, runs, target_tpot, in_flight, rate, progress)
    bound = None
    if gpu:
        launched = [fitted.launch for fitted in model.launches]
        roofline = roofline_for(gpu, config, sources, launched, model.kv_cache_dtype)
        bound = bound_of(roofline, work, curve.method.max_num_seqs)
    known = throughput_json(answer, curve, runs, bound)
    echo(
        dump(known)
        if as_json
        else throughput_summary(answer, curve, runs, bound).as_text(click.style)
    )
