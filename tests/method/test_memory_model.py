"""Launches in, parameters and their errors out: against vLLM's exact bytes and real launches."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from vllm_tuning.answer import fit_memory_model
from vllm_tuning.answer.models import model_of
from vllm_tuning.kv_cache.layout import Shape
from vllm_tuning.launch import Launch
from vllm_tuning.reading.tables import parse_launches, read_launches
from vllm_tuning.report.contract import fit_json
from vllm_tuning.units import GIB, MIB, InputError

K1, K2, K = (
    147456,
    3094568,
    8192,
)  # exact bytes of vLLM's accounting, by hand from two launches each
SHAPE = Shape(K, 8192)


def exact(rows, **names):
    return [
        Launch(
            max_num_seqs=row["max_num_seqs"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
            exact=True,
            **{name: row[column] for name, column in names.items()},
        )
        for row in rows
    ]


def test_slopes_of_the_exact_bytes_by_hand(exact_launches):
    peak = {
        (row["max_num_seqs"], row["max_num_batched_tokens"]): row["peak_activation_bytes"]
        for row in exact_launches
    }
    assert (peak[16, 8192] - peak[16, 2048]) / 6144 == K1
    assert (peak[512, 512] - peak[128, 512]) / 384 == K2
    assert peak[512, 512] - 512 * (K2 + K) == 0


@pytest.mark.parametrize(
    "names, route",
    [
        ({"peak_activation": "peak_activation_bytes"}, "peak_activation"),
        ({"kv_cache": "kv_cache_bytes"}, "kv_only"),
    ],
)
def test_exact_bytes_give_exact_slopes_by_either_route(exact_launches, names, route):
    model = fit_memory_model(exact(exact_launches, **names), SHAPE)
    assert model.route == route
    assert model.k1.n == pytest.approx(K1, rel=1e-8) and model.k2.n == pytest.approx(K2, rel=1e-8)
    assert [fitted.branch for fitted in model.launches] == [
        "model" if row["max_num_seqs"] == 16 else "sampler" for row in exact_launches
    ]


def test_printed_figures_hold_the_exact_ones_within_their_errors(exact_launches):
    model = model_of(["llama-3-8b-2-layers"])
    assert model.route == "kv_only"  # tokens to a block of 262,144 bytes are finer than 0.01 GiB
    assert model.k1.n == pytest.approx(K1, abs=2 * model.k1.s)
    assert model.k2.n == pytest.approx(K2, abs=2 * model.k2.s)
    assert model.a1.n == pytest.approx(0, abs=2 * model.a1.s)
    truth = {(row["max_num_seqs"], row["max_num_batched_tokens"]): row for row in exact_launches}
    for fitted in model.launches:
        row = truth[fitted.launch.max_num_seqs, fitted.launch.max_num_batched_tokens]
        assert fitted.kv_cache == pytest.approx(row["kv_cache_bytes"], abs=262144)
        assert fitted.peak_activation == pytest.approx(
            row["peak_activation_bytes"], abs=3 * model.a1.s
        )


def test_a_held_out_launch_is_predicted_within_its_standard_error(exact_launches):
    launches = read_launches("llama-3-8b-2-layers")
    for i, launch in enumerate(launches):
        if (launch.max_num_seqs, launch.max_num_batched_tokens) == (16, 2048):
            rest = fit_memory_model(launches[:i] + launches[i + 1 :], SHAPE)
            pool = rest.pool(16, 2048)
            row = next(row for row in exact_launches if row["max_num_batched_tokens"] == 2048)
            assert pool.n == pytest.approx(row["kv_cache_bytes"], abs=3 * pool.s)
            return
    pytest.fail("the launch at 16/2048 is not in the set")


def test_the_real_profile_grid_from_all_rows():
    model = model_of(["vllm-0.32-profile-grid"])
    assert model.k1.n == pytest.approx(10240, rel=1e-6)
    assert model.k2.n == pytest.approx(769068, rel=1e-6)
    assert model.k.n == pytest.approx(512, rel=1e-6) and model.k_source == "config"


def test_a30_from_the_pool_alone():
    model = model_of(["qwen3.5-4b-a30"])
    assert model.route == "kv_only"
    assert model.k1.n == pytest.approx(111_280, abs=250) and 200 < model.k1.s < 250
    assert all(abs(fitted.residual) <= 0.01 * GIB for fitted in model.launches)
    assert math.isnan(model.k2.n) and "sampler" in model.reasons["k2"]
    assert math.isnan(model.a1.n) and "total_memory_gib" in model.reasons["a1"]
    assert len(model.next_launches) == 2
    assert all(n.max_num_seqs <= n.max_num_batched_tokens for n in model.next_launches)


def test_a30_held_out_from_the_two_smallest():
    launches = read_launches("qwen3.5-4b-a30")
    model = fit_memory_model(launches[:2])
    for launch in launches[2:]:
        predicted = model.pools(launch.max_num_seqs, launch.max_num_batched_tokens)[0]
        assert predicted.n == pytest.approx(launch.kv_cache, abs=0.08 * GIB)


def test_the_v0_launches_on_a_3090_go_through_the_origin():
    """By hand: 0.92 GiB over 9,000 tokens between the two long launches, 0.06 GiB at 512."""
    model = model_of(["llama-3.1-8b-rtx3090"])
    assert model.k1.n == pytest.approx(0.92 * GIB / 9000, rel=0.01)
    assert abs(model.a1.n) < 0.03 * GIB
    assert "max_num_seqs" in model.reasons["k2"]


def rows(*pairs, columns="max_num_seqs,max_num_batched_tokens,peak_activation_gib", **same):
    """Launches; ``same``: fields that are equal in all."""
    return [replace(each, **same) for each in parse_launches("\n".join([columns, *pairs]), "f.csv")]


def test_identical_launches():
    model = fit_memory_model(rows("16,512,0.5", "16,512,0.5", "16,512,0.5"))
    assert (
        model.reasons["k1"]
        == model.reasons["k2"]
        == ("all launches have the same max_num_seqs and max_num_batched_tokens")
    )
    assert len(model.next_launches) == 3  # this one is the low end of group 2


def test_one_launch():
    assert fit_memory_model(rows("16,512,0.5")).reasons["k1"] == "one launch gives no slope"


def test_a_flat_group_is_in_the_other_branch():
    """Group 1 at a large budget: the model run sets the peak, whatever the requests."""
    model = fit_memory_model(rows("64,8192,1.2", "256,8192,1.2", "16,2048,0.3", "16,4096,0.6"))
    assert math.isnan(model.k2.n) and "no launch is in the sampler's branch" in model.reasons["k2"]
    assert {n.max_num_batched_tokens for n in model.next_launches} == {512}


def test_two_points_within_the_rounding_give_no_slope():
    model = fit_memory_model(rows("16,512,0.52", "16,1024,0.53"))
    assert math.isnan(model.k1.n) and "rounding" in model.reasons["k1"]
    assert math.isnan(model.pool(16, 512).n)


def test_mns_above_mnbt_is_cut_at_the_budget():
    model = fit_memory_model(rows("512,256,0.51", "1024,256,0.51", "128,256,0.26", "64,256,0.13"))
    assert model.k2.n == pytest.approx(0.25 * GIB / 128, rel=0.02)
    assert "mns_above_mnbt" in [notice.name for notice in model.notices]


def test_negative_pools_are_readings_too():
    model = fit_memory_model(
        rows(
            "16,4096,1.5",
            "16,8192,0.5",
            "16,16384,-1.5",
            columns="max_num_seqs,max_num_batched_tokens,kv_cache_gib",
        )
    )
    assert model.k1.n == pytest.approx(1.0 * GIB / 4096)
    assert "negative_kv_cache" in [notice.name for notice in model.notices]


def test_one_branch_of_three_hundred_launches():
    many = [f"{n % 60 + 1},{1024 + 64 * n},{0.1 + 1e-4 * (1024 + 64 * n):.2f}" for n in range(300)]
    model = fit_memory_model(rows(*many))
    assert model.k1.n == pytest.approx(1e-4 * GIB, rel=0.01) and math.isnan(model.k2.n)


def test_launches_without_flags_or_figures_are_left_out_and_named():
    model = fit_memory_model(rows("16,2048,0.3", ",2048,0.9", "16,,0.9", "16,4096,", "16,4096,0.6"))
    assert len(model.launches) == 2
    assert [n.text.split(":")[1] for n in model.notices if n.name == "launch_not_used"] == [
        "3",
        "4",
        "5",
    ]


def test_nothing_to_fit_is_an_answer_with_reasons():
    model = fit_memory_model(rows("16,512,"))
    assert model.route is None and "peak_activation_gib" in model.reasons["k1"]
    assert fit_json(model)["k1"] is None


def test_k_is_from_the_config_else_fitted_where_identified_else_assumed():
    def peak(b, c):
        return max(150e3 * b, 3e6 * c + 20e3 * b) / GIB

    four = [(128, 512), (512, 512), (16, 2048), (16, 16384)]
    five = [*four, (512, 8192)]

    def fit(pairs, shape=None):
        every = rows(*(f"{c},{b},{peak(b, c)!r}" for c, b in pairs), exact=True)
        return fit_memory_model(every, shape)

    assert fit(five).k_source == "fitted" and fit(five).k.n == pytest.approx(20e3, rel=1e-3)
    assert fit(five, Shape(8192, None)).k.n == 8192  # which is known
    assert fit(four, Shape(20000, None)).k_source == "config"
    assert fit(four, Shape(20000, None)).a2.n == pytest.approx(0, abs=1)
    assumed = fit(four)
    assert assumed.k_source == "assumed"  # anywhere from 0 to 20 KiB
    assert (assumed.k.n, assumed.k.s) == pytest.approx((10240, 10240 / 1.645), rel=1e-3)
    assert "hidden_states_unknown" in [notice.name for notice in assumed.notices]


def test_the_estimate_for_graphs_is_taken_out_of_the_pool_readings():
    """The pool is A - G - P; G grows with mns here, so K2 from the bare pools would be wrong."""
    columns = (
        "vllm_version,max_num_seqs,max_num_batched_tokens,kv_cache_gib,cuda_graph_estimated_gib"
    )
    launches = rows(
        "0.32.0,128,512,9.0,0.5",
        "0.32.0,512,512,7.0,1.0",
        "0.32.0,16,2048,9.5,0.25",
        "0.32.0,16,8192,8.75,0.25",
        columns=columns,
    )
    model = fit_memory_model(launches)
    assert model.k2.n == pytest.approx(1.5 * GIB / 384)
    assert model.k1.n == pytest.approx(0.75 * GIB / 6144)
    # a line over the captured sizes, by hand: x = 7, 7, 35, 51, slope 22 / 1424
    assert model.graph_charge(512) == pytest.approx((0.5 + 26 * 22 / 1424) * GIB)
    assert [fitted.kv_cache / GIB for fitted in model.launches] == pytest.approx([9, 7, 9.5, 8.75])


def test_another_process_on_the_gpu_does_not_bend_the_pool_readings():
    columns = "max_num_seqs,max_num_batched_tokens,kv_cache_gib,non_torch_gib"
    model = fit_memory_model(
        rows("16,2048,9.0,0.3", "16,4096,8.5,0.3", "16,8192,5.5,2.3", columns=columns)
    )
    assert model.k1.n == pytest.approx(0.5 * GIB / 2048)


def test_a_config_that_the_launches_contradict_is_not_used():
    model = fit_memory_model(read_launches("llama-3-8b-2-layers"), Shape(K, 131072))
    assert model.kv_per_token.n == pytest.approx(8192, rel=2e-3)
    assert "config_disagrees" in [notice.name for notice in model.notices]


def test_a_sampler_that_is_steeper_at_few_requests_is_told():
    model = model_of(["qwen1.5-4b-a100"])
    assert "sampler_bends" in [notice.name for notice in model.notices]
    assert model.k2.n == pytest.approx(39 * 151936, rel=0.04)  # as up to 1,024 requests, it says
    assert model.chi2 < model.dof


def test_a_peak_that_falls_while_both_flags_rise_is_refused():
    with pytest.raises(InputError, match=r"f.csv:3: .* falls"):
        fit_memory_model(rows("16,2048,1.5", "16,8192,0.5"))


def test_two_files_make_one_fit_and_must_agree(tmp_path):
    for name, text in {"a.csv": "16,2048,0.3,1\n16,4096,0.6,1", "b.csv": "16,8192,1.2,2"}.items():
        (tmp_path / name).write_text(
            "max_num_seqs,max_num_batched_tokens,peak_activation_gib,vllm_version\n" + text
        )
    with pytest.raises(InputError, match=r"b.csv:2: vllm_version"):
        model_of([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert len(model_of([tmp_path / "a.csv"]).launches) == 2


def test_tokens_alone_ask_for_the_config():
    tokens = rows(
        "16,2048,480000",
        "16,8192,400000",
        columns="max_num_seqs,max_num_batched_tokens,kv_cache_tokens",
    )
    assert "--config" in fit_memory_model(tokens).reasons["k1"]
    assert fit_memory_model(tokens, Shape(K, 8192)).k1.n == pytest.approx(80000 * 8192 / 6144)


def test_an_assumed_block_size_is_told():
    names = [
        notice.name
        for notice in fit_memory_model(rows("16,2048,0.3", "16,4096,0.6", exact=True)).notices
    ]
    assert names == ["block_size_assumed"]


def test_noise_of_three_hundred_launches_is_no_contradiction():
    draw, text = random.Random(2), []
    for _ in range(300):
        seqs, tokens = draw.choice((16, 64, 256, 512)), draw.choice((512, 1024, 2048, 4096, 8192))
        peak = max(150e3 * tokens, 3e6 * seqs) / GIB + draw.gauss(0, 0.03)
        text.append(f"{seqs},{tokens},{max(peak, 0):.2f}")
    model = fit_memory_model(rows(*text))
    assert model.k1.n == pytest.approx(150e3, abs=4 * model.k1.s)
    assert model.k2.n == pytest.approx(3e6, abs=4 * model.k2.s)


def test_a_pool_known_to_the_byte_does_not_narrow_the_printed_ones():
    """Of two launches one is printed to 0.01 GiB; both are off the law by 6 MiB as GPUs are."""
    pools = [f"{30 * GIB - 150e3 * 2048:.0f}", f"{(30 * GIB - 150e3 * 16384) / GIB:.2f}"]
    text = rows(
        f"16,2048,{float(pools[0]) / GIB!r}",
        f"16,16384,{pools[1]}",
        columns="max_num_seqs,max_num_batched_tokens,kv_cache_gib",
    )
    model = fit_memory_model(text)
    steps = 1 * MIB / math.sqrt(3)  # half of what a GPU hands memory out by
    error = math.hypot(0.005 * GIB / math.sqrt(3), steps, steps, 6 * MIB, 6 * MIB)
    assert model.k1.s == pytest.approx(error / 14336, rel=1e-3)
    assert model.k1.n == pytest.approx(150e3, abs=2 * model.k1.s)


def test_what_a_log_warns_of_reaches_the_fit_once_for_all_launches():
    launches = [
        replace(launch, warnings=("speculative_decoding", "derived_non_torch"))
        for launch in rows("16,2048,0.3", "16,4096,0.6")
    ]
    told = [
        notice
        for notice in fit_memory_model(launches).notices
        if notice.name == "speculative_decoding"
    ]
    assert len(told) == 1 and all(Path(launch.where).name in told[0].text for launch in launches)
    assert "derived_non_torch" not in {notice.name for notice in fit_memory_model(launches).notices}


def test_logs_of_the_carried_set_give_the_exact_slopes_and_find_the_config():
    """Each log holds its pool to the byte, so K1 and K2 come out as by hand from the bytes."""
    logs = sorted((ROOT / "data/llama-3-8b-2-layers/logs").glob("*.log"))
    model = model_of(logs)
    assert model.k_source == "config" and len(model.launches) == 4
    assert model.k1.n == pytest.approx(K1, rel=1e-6) and model.k2.n == pytest.approx(K2, rel=1e-6)


def test_equal_flags_with_other_pools_are_told_not_refused():
    """Two starts of one server with equal flags, 0.14 GiB apart, beside a second group."""
    model = fit_memory_model(
        rows(
            "256,2048,35.06",
            "256,2048,35.2",
            "1024,2048,33.0",
            columns="max_num_seqs,max_num_batched_tokens,kv_cache_gib",
        )
    )
    (told,) = [notice for notice in model.notices if notice.name == "repeats_differ"]
    assert "0.14 GiB" in told.text and ":3:" in told.text
    unknown = fit_memory_model(
        rows("2048,35.06", "2048,34.2", columns="max_num_batched_tokens,kv_cache_gib")
    )
    assert "max_num_seqs is not given" in unknown.notices[-1].text


def test_a_failed_launch_is_left_out_by_its_own_reason():
    failed = rows("failed,no memory", columns="status,error")
    (told,) = [n for n in fit_memory_model(failed).notices if n.name == "launch_not_used"]
    assert "failed: no memory" in told.text
