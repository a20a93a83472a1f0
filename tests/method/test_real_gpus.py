"""Launches of real GPUs that vary both flags: the law, held-out launches, and what is promised.

The figures by which K1, K2, k and TM are judged are a robust fit of the whole A10G study (method of
the source's own data), of which half is carried here.
"""

import math

import pytest
from conftest import ROOT

from vllm_tuning import GIB, Launch, Workload, find_optimum, fit_memory_model
from vllm_tuning.answer import Asked, model_of
from vllm_tuning.kv_cache.layout import read_shape
from vllm_tuning.pool import expected_at
from vllm_tuning.reading.tables import read_launches
from vllm_tuning.report.contract import recommend_json
from vllm_tuning.units import MIB

DATA = ROOT / "data"
EAGER = read_launches(DATA / "a10g-qwen2.5-7b-eager")
COLD = read_launches(DATA / "a10g-qwen2.5-7b-cold")
SHAPE = read_shape(DATA / "a10g-qwen2.5-7b-eager/config.json")
PLANNED = {(16, 822), (25, 6075), (314, 4377), (1024, 6598)}
LEVEL_0 = {"e09", "e25", "e27", "e37", "e51"}  # without the compiler, but not eager


def predicted(launches, launch, shape=SHAPE):
    """GiB of the launch's pool by the others: what was printed less what is expected, and +-."""
    model = fit_memory_model(launches, shape, Asked(launch.gpu_memory_utilization))
    found = expected_at(model, launch.max_num_seqs, launch.max_num_batched_tokens)
    off = launch.kv_cache + launch.graph_charge - found.kv_cache - found.graph_charge
    return off / GIB, found.kv_cache_stderr / GIB


def test_the_law_of_an_eager_a10g():
    """All KV cache dtypes, block sizes and utilizations in one fit."""
    model = fit_memory_model(EAGER, SHAPE)
    assert model.k1.n == pytest.approx(142_000, rel=0.03)
    assert model.k2.n == pytest.approx(2.13e6, rel=0.01)
    assert math.sqrt(sum(f.residual**2 for f in model.launches) / 20) < 11 * MIB
    free = fit_memory_model(EAGER)
    assert free.k_source == "fitted" and free.k.n == pytest.approx(7168, abs=free.k.s)


def test_the_total_memory_from_the_utilizations():
    unknown = [launch.__class__(**vars(launch) | {"total_memory": None}) for launch in EAGER]
    model = fit_memory_model(unknown, SHAPE)
    assert 22.2 < model.total_memory.n / GIB < 22.35


def test_each_eager_launch_is_predicted_from_the_others():
    inside = []
    for launch in EAGER:
        off, error = predicted([each for each in EAGER if each is not launch], launch)
        assert abs(off) < (0.04 if launch.source in LEVEL_0 else 0.03), launch.source
        inside.append((abs(off) <= 2 * error, abs(off), error))
    assert sum(good for good, _, _ in inside) >= 0.93 * len(inside)
    seen = math.sqrt(sum(off**2 for _, off, _ in inside) / len(inside))
    assert max(error for _, _, error in inside) < 3 * seen


def test_four_launches_of_the_planner_s_kind_predict_the_rest():
    flags = {launch: (launch.max_num_seqs, launch.max_num_batched_tokens) for launch in EAGER}
    four = [launch for launch, at in flags.items() if at in PLANNED]
    assert len(four) == 4
    for launch in EAGER:
        if launch not in four:
            off, _ = predicted(four, launch)
            assert abs(off) < 0.045, launch.source


def test_a_cold_start_hides_the_model_run():
    model = fit_memory_model(COLD, SHAPE)
    assert math.sqrt(sum(f.residual**2 for f in model.launches) / len(COLD)) < 8 * MIB
    assert model.k1.n == pytest.approx(14_100, rel=0.05)
    assert model.k2.n == pytest.approx(2.14e6, rel=0.01)
    apart = (model.pool_at_zero_requests - model.pool_at_zero_tokens).n
    assert apart == pytest.approx(0.955 * GIB, abs=0.03 * GIB)
    assert {"cold_start", "intercepts_differ"} <= {notice.name for notice in model.notices}
    for launch in COLD:
        off, _ = predicted([each for each in COLD if each is not launch], launch)
        assert abs(off) < 0.02, launch.source


def test_the_answer_for_cold_starts_is_what_the_requests_need():
    """Before graphs 149, 149, 148 and 146 requests fit; the need of 148 is 739 tokens a step."""
    asked = Asked(0.92, kv_cache_dtype="auto")
    model = fit_memory_model(COLD, SHAPE, asked)
    for budget, held in ((512, 149), (2048, 149), (4096, 148), (8192, 146)):
        found = expected_at(model, held, budget)
        blocks = (found.kv_cache + found.graph_charge) / (16 * 57344)
        assert int((blocks - 1) / 40) == held
    best = find_optimum(model, Workload(512, 128)).recommended
    assert best.basis == "fit" and best.max_num_batched_tokens <= 5000
    assert best.max_num_batched_tokens >= -(-best.max_num_seqs * 639 // 128)


def test_the_pool_of_the_cold_start_beside_a_warm_answer():
    """An RTX 4090 with Qwen3 8B at 256/2048: 4.92 GiB cold, 5.91 warm (300 recorded starts)."""
    cold, warm = (
        Launch(
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            gpu_memory_utilization=0.92,
            kv_cache=pool * GIB,
            kv_cache_tokens=tokens,
            block_size=16,
            cold_start=tokens == 35792,
            model_runner="V2",
            vllm_version="0.27.1",
        )
        for pool, tokens in ((4.92, 35792), (5.91, 43040))
    )
    both, alone = (
        find_optimum(fit_memory_model(launches), Workload(1024, 256))
        for launches in ([cold, warm], [warm])
    )
    best = recommend_json(both)["recommended"]
    assert best["max_num_seqs"] == both.recommended.max_num_seqs >= (43040 - 16) // 1280
    assert best["kv_cache_gib"] - best["kv_cache_cold_gib"] == pytest.approx(0.99, abs=0.001)
    said = {notice.name: notice.text for notice in both.notices}
    assert "smaller by 0.99 GiB" in said["starts_cold_first"].replace("(by", "by")
    assert "not known" in {n.name: n.text for n in alone.notices}["starts_cold_first"]
    assert recommend_json(alone)["recommended"]["kv_cache_cold_gib"] is None


def test_an_h200_whose_k1_jumps():
    model = model_of(["h200-llama-70b-fp8"])
    assert model.k1.n == pytest.approx(208e3, rel=0.03) and model.assumed == "k2"
    assert model.k2.n == pytest.approx(38.5 * 128256, rel=0.03)
    names = {notice.name for notice in model.notices}
    assert {"off_the_line", "intercepts_assumed_equal"} <= names
    (off,) = [fitted for fitted in model.launches if fitted.left_out]
    assert off.flags == (256, 32768) and abs(off.residual) == pytest.approx(1.75 * GIB, rel=0.03)
