"""What a step costs: by hand, and against data sheets."""

import json
import random

import numpy as np
import pytest
from test_scheduler import random_workload

from vllm_tuning.budget.gpus import GPUS
from vllm_tuning.reading.tables import DATA
from vllm_tuning.scheduler import full_requests
from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.scheduler import Scheduler
from vllm_tuning.scheduler.simulation import fixed_requests, simulate
from vllm_tuning.scheduler.step_time import GivenStepTime, Roofline, roofline_of
from vllm_tuning.units import InputError
from vllm_tuning.workload import Workload

H100 = Roofline(GPUS["H100"], 15e9, 7e9, 131072)


# ---------------------------------------------------------------- the bound


def test_the_two_limits_by_hand():
    assert H100.read_seconds() == pytest.approx(15 / 3350)
    assert H100.read_seconds(1000) == pytest.approx((15e9 + 131.072e6) / 3.35e12)
    assert H100.compute_seconds(8192) == pytest.approx(14e9 * 8192 / 989.4e12)
    assert H100.seconds(1) == pytest.approx(15 / 3350)  # reading
    assert H100.seconds(8192) == pytest.approx(0.1159, rel=1e-3)  # multiplying
    assert H100.seconds([1, 8192], [0, 10**6]).shape == (2,)


def test_where_decoding_stops_being_free():
    """Operations take as long as the weights at rate / bandwidth, where 2 bytes are a parameter."""
    even = Roofline(GPUS["A100-80GB"], 2 * 7e9, 7e9, 131072)
    assert even.compute_bound_requests() == pytest.approx(312e12 / 2039e9)
    seqs = H100.kv_bound_requests(1536)
    assert seqs == pytest.approx(15e9 / (131072 * 1536))
    assert H100.read_seconds(seqs * 1536) == pytest.approx(2 * H100.read_seconds())


def test_gpus_have_a_ridge_that_is_that_of_a_card():
    """100 to 500 operations for each byte of memory on every card of these generations."""
    for name, gpu in GPUS.items():
        assert gpu.tensor_rate is None or 100 < gpu.tensor_rate / gpu.memory_bandwidth < 500, name


LLAMA = DATA / "llama-3.1-8b-rtx3090/config.json"


def test_the_bound_of_a_model_from_its_config():
    """32 layers of 4,096: q and o, k and v of 8 heads, three matrices of 14,336; 128,256 words."""
    layers = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    bound, half = (roofline_of(LLAMA, GPUS["H100"], gpus) for gpus in (1, 2))
    assert (bound.parameters, bound.kv_bytes_per_token) == (layers, 131072)
    assert bound.weight_bytes == 2 * (layers + 128256 * 4096)  # the head, not the embeddings
    assert (half.parameters, half.weight_bytes, half.kv_bytes_per_token) == (
        bound.parameters / 2,
        bound.weight_bytes / 2,
        65536,
    )
    assert roofline_of(LLAMA, GPUS["L4"], kv_cache_dtype="fp8").kv_bytes_per_token == 65536


def test_one_table_for_both_ends_is_read_once(tmp_path):
    path = tmp_path / "config.json"
    config = json.loads(LLAMA.read_text())
    path.write_text(json.dumps(config | {"tie_word_embeddings": True}))
    tied, own = (roofline_of(file, GPUS["L4"]) for file in (path, LLAMA))
    assert tied == own


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, "experts"),
        ({"sliding_window": 4096}, "layers that do not keep every token"),
    ],
)
def test_no_bound_where_the_config_does_not_tell_what_a_step_reads(tmp_path, change, reason):
    (tmp_path / "config.json").write_text(json.dumps(json.loads(LLAMA.read_text()) | change))
    with pytest.raises(InputError, match=f"config.json: {reason}.*no bound"):
        roofline_of(tmp_path, GPUS["L4"])


# ---------------------------------------------------------------- the columns of the trace


def test_resident_tokens_and_first_tokens_by_hand():
    """A and B of 4 + 8 tokens in 4 blocks of 4: B is out in step 5 and comes back in step 8."""
    config = SchedulerConfig(2, 100, 5, block_size=4)
    trace = simulate(config, [Request("A", 4, 8), Request("B", 4, 8)], trace=True).trace
    assert trace.table()["kv_tokens"].tolist() == [8, 10, 12, 14, 16, 9, 10, 11, 9, 10, 11]
    assert trace.events("first_token").tolist() == [[0, 0], [0, 1]]


def test_a_cut_prompt_has_its_first_token_when_it_is_complete():
    trace = simulate(
        SchedulerConfig(3, 40, 100),
        [Request("A", 1, 4), Request("B", 1, 4), Request("C", 50, 2, at=1)],
        trace=True,
    ).trace
    assert trace.events("first_token").tolist() == [[0, 0], [0, 1], [2, 2]]
    assert trace.table()["kv_tokens"].tolist() == [2, 42, 56, 59]


def test_resident_tokens_are_the_sum_over_the_running_requests():
    draw = random.Random(21)
    for _ in range(200):
        requests, config = random_workload(draw)
        scheduler = Scheduler(config)
        for request in requests:
            scheduler.add_request(request)
        while scheduler.running or scheduler.waiting:
            step = scheduler.schedule()
            assert step.kv_tokens == sum(map(scheduler.computed_tokens, scheduler.running.values()))
            scheduler.update_from_output(step)
        assert scheduler.kv_tokens == 0


def test_every_request_has_one_first_token_before_its_end():
    draw = random.Random(22)
    for _ in range(200):
        requests, config = random_workload(draw)
        trace = simulate(config, requests, trace=True).trace
        assert sorted(trace.events("first_token")[:, 1]) == list(range(len(requests)))
        first, end = (
            dict(rows[:, ::-1].tolist()) for rows in map(trace.events, ("first_token", "finished"))
        )
        for number, request in enumerate(trace.requests):
            assert end[number] - first[number] >= request.max_tokens - 1


# ---------------------------------------------------------------- throughput, TTFT, TPOT


def test_times_of_two_requests_by_hand():
    """A step of a second: A runs in steps 0 to 2; B comes at step 1, waits one, runs in 3 and 4."""
    result = simulate(
        SchedulerConfig(1, 10, 10),
        [Request("A", 3, 3), Request("B", 3, 2, at=1)],
        step_time=GivenStepTime(1.0),
    ).times
    assert result.duration == 5 and result.throughput == pytest.approx(5 / 5)
    assert result.ttft.tolist() == [1, 3] and result.tpot.tolist() == [1, 1]
    assert result.kind == "given"


def test_times_under_the_bound_by_hand():
    """A prompt of 8,192 is multiplied in 116 ms, three decodes are read in 4.8 ms each."""
    config = SchedulerConfig(1, 8192, 1000, max_model_len=9000)
    result = simulate(config, [Request("A", 8192, 4)], step_time=H100).times
    decode = (15e9 + 131072 * np.array([8193, 8194, 8195])) / 3.35e12
    assert result.duration == pytest.approx(14e9 * 8192 / 989.4e12 + decode.sum())
    assert result.ttft[0] == pytest.approx(14e9 * 8192 / 989.4e12)
    assert result.tpot[0] == pytest.approx(decode.mean())
    assert result.kind == "lower bound of the step time"


def times_of(trace, step_time):
    """Duration, TTFT and TPOT of each request out of the trace's own figures."""
    table = trace.table()
    ends = np.cumsum(step_time.seconds(table["tokens"], table["kv_tokens"]))
    starts = np.append(0, ends)
    first, last = (
        np.array([ends[step] for step, _ in sorted(trace.events(name), key=lambda row: row[1])])
        for name in ("first_token", "finished")
    )
    arrived = starts[[request.at for request in trace.requests]]
    further = np.array([request.max_tokens - 1 for request in trace.requests])
    return ends[-1], first - arrived, (last - first) / np.where(further, further, np.nan)


def test_times_are_those_of_the_trace():
    """The clock beside the steps of the trace, in a closed loop too, traced and streamed."""
    draw = random.Random(23)
    for _ in range(150):
        requests, config = random_workload(draw)
        for step_time in (H100, GivenStepTime(0.5)):
            for concurrency in (None, 2):
                traced = simulate(config, requests, concurrency, trace=True, step_time=step_time)
                stream = simulate(config, iter(requests), concurrency, step_time=step_time)
                duration, ttft, tpot = times_of(traced.trace, step_time)
                for times in (traced.times, stream.times):
                    assert times.duration == pytest.approx(duration)
                    assert times.throughput * duration == pytest.approx(
                        sum(request.max_tokens for request in requests)
                    )
                    assert times.ttft == pytest.approx(ttft)
                    assert times.tpot == pytest.approx(tpot, nan_ok=True)


def test_a_request_waits_from_its_arrival_also_in_a_stream():
    """Five of two tokens, one at a time, all there at once: first tokens after 1, 3, 5, 7, 9."""
    times = simulate(
        SchedulerConfig(1, 10, 10), fixed_requests(5, 3, 2), step_time=GivenStepTime(2.0)
    ).times
    assert times.ttft.tolist() == [2, 6, 10, 14, 18] and times.tpot.tolist() == [2] * 5
    assert (times.kind, times.duration, times.throughput) == ("given", 20, 0.5)


@pytest.mark.parametrize("step", [0, -1, float("nan"), float("inf")])
def test_a_given_step_takes_some_time(step):
    with pytest.raises(InputError, match="must be above 0"):
        GivenStepTime(step)


def test_one_token_has_no_time_per_further_token():
    times = simulate(SchedulerConfig(1, 10, 10), [Request("A", 3, 1)], step_time=H100).times
    assert np.isnan(times.tpot).all()


def test_full_requests_of_the_chat_server():
    """28,100 usable blocks of 16: 113 blocks hold 1,800 tokens."""
    server = SchedulerConfig(1024, 8192, 28101)
    assert full_requests(server, Workload(1000, 800)) == 28100 // 113 == 248
