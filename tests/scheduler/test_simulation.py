"""Summaries, arrivals, traces as arrays, and the load sweep of a real server."""

import itertools
import json
import math
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from test_scheduler import SHARED, random_workload

from vllm_tuning import find_optimum, model_of
from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.simulation import fixed_requests, poisson_arrivals, server_at, simulate
from vllm_tuning.units import InputError
from vllm_tuning.workload import Workload

LOAD = SHARED / "oracle/load"
SMALL = SchedulerConfig(2, 100, 5, block_size=4)
TWO = [Request("A", 4, 8), Request("B", 4, 8)]  # B is preempted once: worked in test_scheduler


def test_summary_of_two_requests_by_hand():
    summary = simulate(SMALL, TWO).summary
    used = [2, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3]  # after B: one request of 9 to 11 tokens
    assert summary.n_steps == 11 == len(used)
    assert (summary.max_used, summary.max_run, summary.usable_blocks) == (4, 2, 4)
    assert summary.mean_used == pytest.approx(sum(used) / 11)
    assert summary.mean_pool_use == pytest.approx(sum(used) / 11 / 4) and summary.peak_pool_use == 1
    assert summary.tokens_per_step == pytest.approx(16 / 11)
    assert summary.sched_tokens_per_step == pytest.approx(30 / 11)


def test_trace_as_arrays_and_as_a_table():
    trace = simulate(SMALL, TWO, trace=True).trace
    assert trace.grid().tolist() == [[4] + 7 * [1] + 3 * [0], [4] + 4 * [1] + 3 * [0] + [9, 1, 1]]
    table = trace.table()
    assert table["tokens"].tolist() == [8, 2, 2, 2, 2, 1, 1, 1, 9, 1, 1]
    assert table["running"].tolist() == 5 * [2] + 6 * [1]
    assert table["waiting"].tolist() == 5 * [0] + 3 * [1] + 3 * [0]
    assert table["used"].tolist() == [2, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3]
    assert table["used_after"].tolist() == [2, 4, 4, 4, 4, 3, 3, 0, 3, 3, 0]
    assert np.flatnonzero(table["preempted"]).tolist() == [5]
    assert np.flatnonzero(table["finished"]).tolist() == [7, 10]
    assert trace.events("preempted").tolist() == [[5, 1]] and trace.events("resumed").tolist() == [
        [8, 1]
    ]
    assert trace.scheduled(8) == {"B": 9} and len(trace) == 11


def test_nothing_to_do_is_no_step():
    simulation = simulate(SMALL, [], trace=True)
    assert simulation.summary.n_steps == 0 and simulation.summary.tokens_per_step == 0
    assert len(simulation.trace) == 0 and simulation.trace.table().size == 0


def test_without_a_trace_the_summary_is_the_same():
    """Then requests are read only as needed, and idle steps are passed over."""
    draw = random.Random(11)
    for _ in range(300):
        requests, config = random_workload(draw)
        concurrency = draw.choice([None, 1, 3])
        traced = simulate(config, requests, concurrency, trace=True)
        assert simulate(config, requests, concurrency).summary == traced.summary
        assert simulate(config, iter(requests), concurrency).summary == traced.summary


def test_sums_of_the_trace_are_the_summary():
    draw = random.Random(12)
    for _ in range(100):
        requests, config = random_workload(draw)
        simulation = simulate(config, requests, trace=True)
        summary, table = simulation.summary, simulation.trace.table()
        assert summary.n_steps == len(table) and summary.sched_tokens == table["tokens"].sum()
        assert summary.n_preempt == table["preempted"].sum()
        assert summary.max_used == table["used"].max() and summary.max_run == table["running"].max()
        assert summary.mean_used == pytest.approx(table["used"].mean())
        assert summary.idle_steps == (table["tokens"] == 0).sum()
        once = sum(request.prompt_len + request.max_tokens - 1 for request in requests)
        if not config.enable_prefix_caching:
            assert summary.sched_tokens == once + summary.recomputed_tokens


# ---------------------------------------------------------------- arrivals


def test_an_idle_server_waits_for_the_next_request():
    requests = [Request("A", 2, 2), Request("B", 2, 1, at=6)]
    simulation = simulate(SMALL, requests, trace=True)
    assert [bool(step["sched"]) for step in simulation.trace.to_json()] == [
        True,
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert simulation.summary.idle_steps == 4 and simulation.summary.tokens_per_step == 1


def test_a_list_is_put_in_order_and_an_iterator_is_read_as_it_comes():
    late, early = Request("late", 2, 1, at=5), Request("early", 2, 1, at=1)
    simulation = simulate(SMALL, [late, early], trace=True)
    assert [request.id for request in simulation.trace.requests] == ["early", "late"]
    assert simulate(SMALL, iter([early, late])).summary == simulation.summary


def test_closed_loop_keeps_so_many_in_flight():
    config = SchedulerConfig(8, 64, 100)
    trace = simulate(config, list(fixed_requests(10, 4, 3)), concurrency=2, trace=True).trace
    table = trace.table()
    assert (table["running"] + table["waiting"]).max() == 2
    assert trace.events("new")[:, 0].tolist() == [
        0,
        0,
        3,
        3,
        6,
        6,
        9,
        9,
        12,
        12,
    ]  # 3 steps a request
    assert [request.at for request in trace.requests] == trace.events("new")[:, 0].tolist()


def test_a_closed_loop_counts_the_waiting_too():
    trace = simulate(
        SchedulerConfig(1, 64, 100), list(fixed_requests(4, 4, 3)), concurrency=2, trace=True
    ).trace
    assert trace.table()["waiting"].tolist() == 9 * [1] + 3 * [0]
    assert [request.at for request in trace.requests] == [0, 0, 3, 6]


def test_poisson_arrivals_have_the_rate_and_a_seed():
    requests = list(poisson_arrivals(fixed_requests(20_000, 4, 3), rate=50, step_time=0.01, seed=3))
    gaps = np.diff([request.at for request in requests]) * 0.01
    assert gaps.min() >= 0 and gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    counts = Counter(request.at // 2 for request in requests)  # of spans of 20 ms
    spans = requests[-1].at // 2
    assert 1 - len(counts) / spans == pytest.approx(math.exp(-1), rel=0.05)  # with no arrival
    again = poisson_arrivals(fixed_requests(20_000, 4, 3), rate=50, step_time=0.01, seed=3)
    assert list(again) == requests
    with pytest.raises(InputError, match="must be above 0"):
        next(poisson_arrivals(fixed_requests(1, 1, 1), 1, 0))


def test_progress_counts_every_request():
    done = []
    simulate(SMALL, TWO, progress=done.append)
    assert done == [1, 1]


def test_a_stream_takes_memory_for_the_running_requests_only():
    def peak(count):
        tracemalloc.start()
        summary = simulate(SchedulerConfig(32, 512, 200), fixed_requests(count, 16, 4)).summary
        assert summary.n_requests == count
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(100)
    assert peak(20_000) < 1.2 * peak(2_000)


@pytest.mark.parametrize("concurrency", [0, -1, float("nan")])
def test_a_closed_loop_has_one_in_flight(concurrency):
    with pytest.raises(InputError, match="concurrency is"):
        simulate(SMALL, TWO, concurrency)


def test_a_trace_that_no_memory_holds_is_refused_at_once():
    late, many = [Request("late", 1, 1, at=10**6 + 1)], fixed_requests(10**9, 1, 50_000_000)
    server = SchedulerConfig(1, 1, 10**7, max_model_len=10**8)
    for requests in (late, many):
        with pytest.raises(InputError, match="a trace is kept of at most 100,000,000 generated"):
            simulate(server, requests, trace=True)
    assert simulate(server, late).summary.idle_steps == 10**6 + 1


def test_a_rate_so_low_that_steps_cannot_be_counted():
    with pytest.raises(InputError, match=r"request r0 would arrive after .* rate 1e-300"):
        list(poisson_arrivals(fixed_requests(1, 1, 1), 1e-300, 1e-9))


def test_an_impossible_request_in_a_stream_is_named_when_it_is_read():
    stream = itertools.chain(fixed_requests(3, 4, 4), [Request("big", 4, 40)])
    with pytest.raises(InputError, match="request big: "):
        simulate(SMALL, stream)


# ---------------------------------------------------------------- a server out of launches


def test_the_recommended_server_never_preempts_a_burst_of_full_requests():
    optimum = find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 256))
    server, best = server_at(optimum), optimum.recommended
    assert (server.max_num_seqs, server.max_num_batched_tokens) == (
        best.max_num_seqs,
        best.max_num_batched_tokens,
    )
    assert server.num_gpu_blocks * server.block_size == best.kv_cache_tokens
    assert server.max_model_len == 2048
    assert simulate(server, fixed_requests(1000, 1024, 256)).summary.n_preempt == 0
    more = server_at(optimum, max_num_seqs=2 * best.max_num_seqs, enable_chunked_prefill=False)
    assert more.num_gpu_blocks < server.num_gpu_blocks and not more.enable_chunked_prefill
    assert simulate(more, fixed_requests(1000, 1024, 256)).summary.n_preempt > 0


def test_a_launch_at_the_same_flags_tells_the_printed_pool():
    optimum = find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 256))
    launch = optimum.model.launches[0].launch
    server = server_at(optimum, launch.max_num_seqs, launch.max_num_batched_tokens)
    assert server.num_gpu_blocks * launch.block_size == launch.kv_cache_tokens


def test_launches_that_do_not_tell_the_blocks():
    optimum = find_optimum(model_of(["qwen3.5-4b-a30"]), Workload(1024, 256))
    with pytest.raises(InputError, match="do not tell num_gpu_blocks"):
        server_at(optimum, 17, 1234)


# ---------------------------------------------------------------- the load sweep of a real server


def burst_of(run, trace=False):
    """A run's requests, drawn as its load generator drew them, as a burst."""
    draw = random.Random(1)
    requests = []
    for number in range(run["n"]):
        prompt = [draw.randint(10, 31000) for _ in range(draw.randint(*run["inp"]))]
        requests.append(Request(f"r{number}", len(prompt), draw.randint(*run["out"])))
    caching = "--no-enable-prefix-caching" not in run["extra"]
    config = SchedulerConfig(run["mns"], run["mnbt"], 129, 32, 512, enable_prefix_caching=caching)
    return simulate(config, requests, trace=trace)


@pytest.mark.skipif(not LOAD.is_dir(), reason=f"no load runs of the real server in {LOAD}")
def test_a_burst_takes_the_steps_and_preemptions_of_the_real_server():
    runs = sorted(LOAD.glob("*/run.json"))
    assert len(runs) >= 10
    for path in runs:
        run = json.loads(path.read_text())
        ours, real = burst_of(run["config"]).summary, run["result"]
        assert ours.n_steps == pytest.approx(real["steps"], rel=0.05), path
        assert ours.n_preempt == pytest.approx(real["preemptions"], rel=0.15), path


def test_tokens_per_step_grow_to_the_full_pool_and_are_flat_after_it():
    """Sixteen requests of 128 + 128 fill 128 blocks of 32."""
    summaries = {
        seqs: simulate(
            SchedulerConfig(seqs, 2048, 129, 32, 512), fixed_requests(128, 128, 128)
        ).summary
        for seqs in (4, 8, 12, 16, 24, 32, 64)
    }
    rates = [summary.tokens_per_step for summary in summaries.values()]
    assert rates[0] < rates[1] < rates[2] < rates[3] < min(rates[4:])
    assert max(rates[4:]) < 1.03 * min(rates[4:])
    assert [summary.n_preempt > 0 for summary in summaries.values()] == 4 * [False] + 3 * [True]
