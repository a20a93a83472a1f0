"""The cost of a request in a shared pool, against vLLM's own arithmetic and a real pair of logs."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner
from conftest import ROOT

from vllm_tuning.answer import find_optimum, fit_memory_model
from vllm_tuning.cli import main
from vllm_tuning.kv_cache.layout import Shape, cache_layout, read_shape
from vllm_tuning.kv_cache.model_config import config_of
from vllm_tuning.kv_cache.request_cost import (
    cost_of_request,
    fit_request_cost,
    is_hybrid,
    shape_of,
)
from vllm_tuning.launch import Launch
from vllm_tuning.reading.tables import parse_launches
from vllm_tuning.report.contract import recommend_json
from vllm_tuning.units import GIB
from vllm_tuning.workload import Workload

MODELS = json.loads((ROOT / "tests/data/kv-cache/models.json").read_text())
BLOCK, WINDOW, PAGE = 16, 1024, 16 * 4096  # tokens, tokens, bytes of a block in one layer
FULL, SLIDING = 10, 50  # layers: groups of ten, one of full attention and five of sliding window


def blocks_of(length, budget):
    """Blocks of one request by vLLM's rule: all tokens in one group, a window in the others."""
    window = math.ceil(min(WINDOW - 1 + budget, length) / BLOCK) + 1
    return math.ceil(length / BLOCK) + SLIDING // FULL * window


def row(seqs, budget, length, pool=60.0, k1=150e3, k2=3e6):
    """A launch of such a model as vLLM 0.25 prints it."""
    kv = pool * GIB - max(k1 * budget, k2 * seqs)
    concurrency = kv // (PAGE * FULL) / blocks_of(length, budget)
    return (
        f"0.25.0,{seqs},{budget},{length},{kv / GIB:.2f},{int(concurrency * length)},"
        f"{concurrency:.2f},hybrid_kv"
    )


def launches(*rows):
    return parse_launches(
        "vllm_version,max_num_seqs,max_num_batched_tokens,max_model_len,"
        "kv_cache_gib,kv_cache_tokens,max_concurrency,warnings\n"
        + "\n".join(row(*each) for each in rows)
    )


FOUR = [(256, 2048, 65536), (1024, 2048, 65536), (16, 8192, 65536), (16, 16384, 65536)]


def holds(seqs, budget, length, pool=60.0, k1=150e3, k2=3e6):
    kv = pool * GIB - max(k1 * budget, k2 * seqs)
    return seqs * blocks_of(length, budget) <= kv // (PAGE * FULL) - 1


def test_a_real_pair_of_logs_tells_whole_kibibytes_a_token():
    """poolside/Laguna-S-2.1-INT4 on vLLM 0.25.1, as printed in two public logs."""
    pair = parse_launches(
        "vllm_version,max_num_batched_tokens,max_model_len,kv_cache_gib,kv_cache_tokens,"
        "max_concurrency\n"
        "0.25.1,8192,262144,35.06,1001532,3.82\n0.25.1,8192,65536,35.2,950420,14.5\n"
    )
    assert fit_request_cost(pair) is None  # windows would not show: one mnbt at each length
    same = replace(pair[0], max_num_batched_tokens=2048)  # as if mnbt made no difference there
    cost = fit_request_cost([*pair, same])
    assert cost.per_token.n == pytest.approx(36 * 1024, rel=5e-4)
    assert abs(cost.per_token.n - 36 * 1024) < 3 * cost.per_token.s
    by_hand = 35.2 / (950420 / 65536) * GIB
    assert cost.bytes_of(65536, 8192).n == pytest.approx(by_hand, rel=1e-4)


def test_windows_that_show_make_no_line_and_the_config_is_asked_for():
    """Beside a larger budget a window keeps more, so no a + b*L holds."""
    for rows in (FOUR, [*FOUR, (16, 8192, 131072)], [*FOUR, (16, 8192, 5120)]):
        assert fit_request_cost(launches(*rows)) is None
    answer = find_optimum(fit_memory_model(launches(*FOUR)), Workload(1000, 280))
    assert "--config config.json" in answer.reason
    best = answer.recommended  # so many of full length, as one launch printed
    held = [row.max_concurrency for row in launches(*FOUR)]
    assert best.basis == "bound" and best.max_num_seqs == int(max(held))
    assert "request_cost_is_a_limit" in {notice.name for notice in answer.notices}


def recurrent(*rows):
    """40 of 50 layers keep one page each: by vLLM's rule 4 groups of one block beside the full."""
    found = []
    for seqs, budget, length in rows:
        kv = 60 * GIB - max(150e3 * budget, 3e6 * seqs)
        held = kv // (PAGE * FULL) / (math.ceil(length / BLOCK) + 4)
        found.append(
            Launch(
                max_num_seqs=seqs,
                max_num_batched_tokens=budget,
                max_model_len=length,
                kv_cache=round(kv / GIB, 2) * GIB,
                max_concurrency=round(held, 2),
                hybrid=True,
            )
        )
    return found


def holds_recurrent(seqs, budget, length):
    kv = 60 * GIB - max(150e3 * budget, 3e6 * seqs)
    return seqs * (math.ceil(length / BLOCK) + 4) <= kv // (PAGE * FULL) - 1


def test_recurrent_layers_cost_the_same_whatever_the_length_and_the_budget():
    cost = fit_request_cost(recurrent(*FOUR, (16, 8192, 8192)))
    assert set(cost.terms) == {"fixed", "per_token"}
    assert cost.bytes_of(20000, 512).n == pytest.approx((1250 + 4) * PAGE * FULL, rel=2e-3)


@pytest.mark.parametrize(
    "other, length",
    [(131072, 66000), (131072, 90000), (131072, 120000), (5120, 5120), (5120, 3000), (5120, 20000)],
)
def test_the_recommendation_fits_by_vllms_own_rule_and_few_more_do_not(other, length):
    model = fit_memory_model(recurrent(*FOUR, (16, 8192, other)), Shape(8192, None, True))
    best = find_optimum(model, Workload(length // 2, length - length // 2)).recommended
    assert holds_recurrent(best.max_num_seqs, best.max_num_batched_tokens, length)
    assert not holds_recurrent(best.max_num_seqs * 1.03 + 2, best.max_num_batched_tokens, length)
    assert best.kv_cache_tokens is None and best.concurrency >= best.max_num_seqs


def best_flags(best):
    return best.max_num_seqs, best.max_num_batched_tokens


def test_one_length_answers_for_requests_near_it_only():
    model = fit_memory_model(recurrent(*FOUR))
    for work in (Workload(60000, 5536), Workload(30000, 30000)):
        best = find_optimum(model, work).recommended
        assert holds_recurrent(best.max_num_seqs, best.max_num_batched_tokens, work.length)
    near = find_optimum(model, Workload(30000, 30000))
    assert "request_cost_is_a_limit" in {notice.name for notice in near.notices}
    for far in (Workload(1000, 280), Workload(60000, 10000)):
        optimum = find_optimum(model, far)
        best = optimum.recommended
        assert best is None if far.length > 65536 else best.basis == "bound"
        assert best is None or holds_recurrent(*best_flags(best), 65536)
        assert f"--max-model-len {far.length}" in optimum.reason
    assert optimum.method.reason and recommend_json(optimum)["method"] is None


def test_without_a_concurrency_the_reason_says_what_is_missing():
    rows = [
        Launch(
            max_num_seqs=s,
            max_num_batched_tokens=b,
            max_model_len=65536,
            kv_cache=kv * GIB,
            hybrid=True,
        )
        for s, b, kv in ((256, 2048, 59.0), (1024, 2048, 57.0), (16, 8192, 58.5), (16, 16384, 57.3))
    ]
    assert "max_concurrency" in find_optimum(fit_memory_model(rows), Workload(500, 500)).reason


def test_what_counts_as_several_kinds_of_layers():
    same = Launch(max_model_len=8192, kv_cache_tokens=468144, max_concurrency=57.15)
    other = Launch(max_model_len=131072, kv_cache_tokens=1508112, max_concurrency=22.63)
    assert not is_hybrid([same], None) and is_hybrid([same, other], None)
    assert is_hybrid([same], Shape(4096, None, True)) and not is_hybrid([same], Shape(4096, None))
    printed = Launch(
        vllm_version="0.19.0", max_model_len=8192, kv_cache_tokens=365968, max_concurrency=44.68
    )  # Llama 4 Scout, whose chunks are as long
    assert not is_hybrid([printed], Shape(5120, None, True))


@pytest.mark.parametrize(
    "length, block, dcp",
    [(10000, 16, 1), (10000, 128, 1), (202752, 16, 1), (100000, 256, 1), (10000, 16, 8)],
)
def test_whole_blocks_are_not_taken_for_several_kinds_of_layers(length, block, dcp):
    """Plain layers: a request takes ceil(ceil(L / dcp) / block) blocks of each rank."""
    for blocks in range(4000, 4400):
        held = math.ceil(length / dcp)  # tokens on each rank
        concurrency = blocks / math.ceil(held / block)
        launch = Launch(
            max_model_len=length,
            kv_cache_tokens=blocks * block * dcp,
            max_concurrency=round(concurrency, 2),
        )
        assert not is_hybrid([launch], None)


# ---------------------------------------------------------------- from config.json

CONFIG = {
    "model_type": "gemma3_text",
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 6,
}  # pages of 4,096 bytes a token


def shape(tmp_path, **more):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | more))
    return read_shape(tmp_path)


@pytest.mark.parametrize("length", [20, 500, 1500, 5000, 9000, 30000, 66000, 131072])
def test_with_a_config_four_launches_tell_any_length(length, tmp_path):
    model = fit_memory_model(launches(*FOUR), shape(tmp_path))
    best = find_optimum(model, Workload(length // 2, length - length // 2)).recommended
    assert "config_disagrees" not in {notice.name for notice in model.notices}
    assert holds(best.max_num_seqs, best.max_num_batched_tokens, length)
    slack = 1.02 if best.max_num_seqs <= 1024 else 1.15  # beyond the launches errors grow
    assert not holds(best.max_num_seqs * slack + 2, best.max_num_batched_tokens, length)


def test_the_configured_cost_is_the_rule_to_the_block(tmp_path):
    cost = fit_memory_model(launches(*FOUR), shape(tmp_path)).request_cost
    for budget in (16, 700, 2048, 5000, 20000):
        assert cost.bytes_of(5120, budget).n == blocks_of(5120, budget) * PAGE * FULL


def test_a_config_needs_no_concurrency_in_the_launches(tmp_path):
    rows = [
        replace(launch, max_concurrency=None, kv_cache_tokens=None) for launch in launches(*FOUR)
    ]
    model = fit_memory_model(rows, shape(tmp_path))
    best = find_optimum(model, Workload(3000, 2000)).recommended
    assert holds(best.max_num_seqs, best.max_num_batched_tokens, 5000)
    assert not holds(best.max_num_seqs * 1.02 + 2, best.max_num_batched_tokens, 5000)


def test_launches_that_contradict_the_config_are_named_and_the_larger_cost_counts(tmp_path):
    """A config of 54 layers prices a request too low: at the launched length the launches count."""
    small = shape(tmp_path, num_hidden_layers=54)
    answer = find_optimum(fit_memory_model(launches(*FOUR), small), Workload(60000, 5536))
    assert "config_disagrees" in {notice.name for notice in answer.notices}
    best = answer.recommended  # windows show, so the launches give no cost, but what they hold
    assert best.basis == "bound" and best.max_num_seqs <= max(
        row.max_concurrency for row in launches(*FOUR)
    )
    model = fit_memory_model(recurrent(*FOUR), shape(tmp_path, num_hidden_layers=6))
    assert "config_disagrees" in {notice.name for notice in model.notices}
    best = find_optimum(model, Workload(60000, 5536)).recommended
    assert holds_recurrent(best.max_num_seqs, best.max_num_batched_tokens, 65536)


@pytest.mark.parametrize("length", [5_120, 200_000])
@pytest.mark.parametrize("told", [True, False])
def test_a_mode_that_no_record_tells_is_found_by_the_printed_concurrency(length, told, tmp_path):
    """92 GiB hold 203 requests of 5,120 tokens with three drafts and prefix caching: 5 + 3 * 5
    blocks of 24,150,016 bytes. Without the mode it were 8 blocks: 546 "at once"."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS["Qwen3.6-35B-A3B"]["config"]))
    block, rows = 24_150_016, []
    for seqs, budget, kv in (
        (256, 2048, 92.60),
        (512, 2048, 91.91),
        (16, 4096, 91.40),
        (16, 16384, 86.54),
    ):
        held = kv * GIB // block / (math.ceil(length / 1072) + 15)
        rows.append(
            Launch(
                vllm_version="0.22.0",
                max_num_seqs=seqs,
                max_num_batched_tokens=budget,
                max_model_len=length,
                block_size=1072,
                kv_cache=kv * GIB,
                kv_cache_tokens=int(held * length),
                max_concurrency=round(held, 2),
                hybrid=True,
                cuda_graph=0.0,
                prefix_caching=True if told else None,
                speculative_tokens=3 if told else None,
            )
        )
    found = shape_of(path, rows, block_size=1072)
    assert found.cache.request_blocks(5120, 8192) == 20
    model = fit_memory_model(rows, found)
    assert "config_disagrees" not in {notice.name for notice in model.notices}
    best = find_optimum(model, Workload(4096, 1024)).recommended
    assert 195 <= best.max_num_seqs <= 205


def test_what_a_launch_shows_beside_the_config_is_carried_to_every_length():
    """12 blocks more a request at 200,000 tokens are 12 more at 5,120, not 6 %."""
    cache = cache_layout(config_of(MODELS["Qwen3.6-35B-A3B"]["config"]), block_size=1072)
    row = Launch(
        vllm_version="0.22.0",
        max_num_seqs=16,
        max_num_batched_tokens=4096,
        max_model_len=200_000,
        kv_cache=3163.5 * cache.block_bytes,
        max_concurrency=round(3163 / (cache.request_blocks(200_000, 1) + 12), 2),
        hybrid=True,
    )
    rows = [row, replace(row, max_num_batched_tokens=8192)]
    cost, notice = cost_of_request(rows, Shape(4096, None, True, cache))
    assert notice.name == "config_disagrees"
    more = cost.bytes_of(5120, 4096).n / cache.block_bytes - cache.request_blocks(5120, 4096)
    assert more == pytest.approx(12, abs=0.15)


def test_recurrent_layers_by_the_config(tmp_path):
    """10 of 50 layers attend; a state fills one block of 1,056 tokens in each of four groups."""
    page = 1056 * 4096
    recurrent = shape(
        tmp_path,
        model_type="qwen3_next",
        sliding_window=None,
        num_hidden_layers=50,
        layer_types=(["linear_attention"] * 4 + ["full_attention"]) * 10,
        linear_num_key_heads=16,
        linear_num_value_heads=128,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    rows = [
        Launch(
            max_num_seqs=s,
            max_num_batched_tokens=b,
            max_model_len=65536,
            kv_cache=round(60 - max(150e3 * b, 3e6 * s) / GIB, 2) * GIB,
            hybrid=True,
        )
        for s, b, _ in FOUR
    ]
    best = find_optimum(fit_memory_model(rows, recurrent), Workload(7000, 1000)).recommended
    pool = 60 * GIB - max(150e3 * best.max_num_batched_tokens, 3e6 * best.max_num_seqs)
    blocks = pool // (10 * page) - 1
    assert best.max_num_seqs * (math.ceil(8000 / 1056) + 4) <= blocks
    assert (best.max_num_seqs * 1.01 + 2) * (math.ceil(8000 / 1056) + 4) > blocks


def test_the_command_answers_for_a_hybrid_model_with_its_config(tmp_path):
    """Four starts and config.json, no further launch; JSON says that the cost is the config's."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "launches.csv").write_text(
        "vllm_version,max_num_seqs,max_num_batched_tokens,max_model_len,kv_cache_gib,"
        "kv_cache_tokens,max_concurrency,warnings\n" + "\n".join(row(*each) for each in FOUR)
    )
    done = CliRunner().invoke(
        main, ["recommend", str(tmp_path), "--input-len", "1000", "--output-len", "1000", "--json"]
    )
    best = json.loads(done.stdout)["recommended"]
    assert holds(best["max_num_seqs"], best["max_num_batched_tokens"], 2000)
    fitted = json.loads(CliRunner().invoke(main, ["fit", str(tmp_path), "--json"]).stdout)
    assert fitted["request_cost"]["source"] == "config"
    assert fitted["request_cost"]["per_token"] == PAGE * FULL / BLOCK
    text = CliRunner().invoke(main, ["fit", str(tmp_path)]).stdout
    assert "\n  request " in text and max(map(len, text.splitlines())) <= 80
