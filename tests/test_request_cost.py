"""The cost of a request in a shared pool, against vLLM's own arithmetic and a real pair of logs."""

import math

import pytest

from vllm_tuning.kv_cache import Shape
from vllm_tuning.launches import Launch, parse_launches
from vllm_tuning.memory_model import fit_memory_model
from vllm_tuning.optimum import find_optimum
from vllm_tuning.request_cost import fit_request_cost, is_hybrid
from vllm_tuning.units import GIB
from vllm_tuning.workload import Workload

BLOCK, WINDOW, PAGE = 16, 1024, 16 * 4096  # tokens, tokens, bytes of a block in one layer
FULL, SLIDING = 10, 50  # layers: groups of ten, one of full attention and five of sliding window


def blocks_of(length, budget):
    """Blocks of one request by vLLM's rule: all tokens in the full group, a window in the others."""
    window = math.ceil(min(WINDOW - 1 + budget, length) / BLOCK) + 1
    return math.ceil(length / BLOCK) + SLIDING // FULL * window


def row(seqs, budget, length, pool=60.0, k1=150e3, k2=3e6):
    """A launch of such a model as vLLM 0.25 prints it."""
    kv = pool * GIB - max(k1 * budget, k2 * seqs)
    concurrency = kv // (PAGE * FULL) / blocks_of(length, budget)
    return (f"0.25.0,{seqs},{budget},{length},{kv / GIB:.2f},{int(concurrency * length)},"
            f"{concurrency:.2f},hybrid_kv")


def launches(*rows):
    return parse_launches("vllm_version,max_num_seqs,max_num_batched_tokens,max_model_len,"
                          "kv_cache_gib,kv_cache_tokens,max_concurrency,warnings\n"
                          + "\n".join(row(*each) for each in rows))


FOUR = [(256, 2048, 65536), (1024, 2048, 65536), (16, 8192, 65536), (16, 16384, 65536)]


def holds(seqs, budget, length, pool=60.0, k1=150e3, k2=3e6):
    kv = pool * GIB - max(k1 * budget, k2 * seqs)
    return seqs * blocks_of(length, budget) <= kv // (PAGE * FULL) - 1


def test_a_real_pair_of_logs_tells_whole_kibibytes_a_token():
    """poolside/Laguna-S-2.1-INT4 on vLLM 0.25.1, as printed in two public logs."""
    pair = parse_launches(
        "vllm_version,max_num_batched_tokens,max_model_len,kv_cache_gib,kv_cache_tokens,"
        "max_concurrency\n"
        "0.25.1,8192,262144,35.06,1001532,3.82\n0.25.1,8192,65536,35.2,950420,14.5\n")
    cost = fit_request_cost(pair)
    per_token = cost.terms["per_token"]
    assert per_token.n == pytest.approx(36 * 1024, rel=5e-4)
    assert abs(per_token.n - 36 * 1024) < 3 * per_token.s
    (by_hand, more), = cost.forms(65536)
    assert by_hand.n == pytest.approx(35.2 / (950420 / 65536) * GIB, rel=1e-9) and more.n == 0


def test_the_terms_of_windows_against_the_rule():
    page = PAGE * FULL / BLOCK  # bytes of a token in one group
    for more in ((16, 8192, 131072), (16, 8192, 5120)):  # its windows full, and never full
        cost = fit_request_cost(launches(*FOUR, more))
        assert cost.terms["per_token"].n == pytest.approx(page, rel=5e-3)
        assert cost.terms["per_windowed_token"].n == pytest.approx(SLIDING / FULL * page, rel=0.01)
        for length, budget in ((65536, 2048), (131072, 8192), (100000, 16384), (5120, 512),
                               (5120, 8192), (2000, 300)):
            predicted = min((fixed + budget * slope).n for fixed, slope in cost.forms(length))
            assert predicted == pytest.approx(blocks_of(length, budget) * PAGE * FULL, rel=0.01)


def test_recurrent_layers_cost_the_same_whatever_the_length_and_the_budget():
    """40 of 50 layers keep one page each, by vLLM's rule: 4 groups of one block beside the full one."""
    rows = []
    for seqs, budget, length in (*FOUR, (16, 8192, 8192)):
        kv = 60 * GIB - max(150e3 * budget, 3e6 * seqs)
        held = kv // (PAGE * FULL) / (math.ceil(length / BLOCK) + 4)
        rows.append(Launch(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=length,
                           kv_cache=round(kv / GIB, 2) * GIB, max_concurrency=round(held, 2)))
    cost = fit_request_cost(rows)
    assert set(cost.terms) == {"fixed", "per_token"}
    (predicted, _), = cost.forms(20000)
    assert predicted.n == pytest.approx((1250 + 4) * PAGE * FULL, rel=2e-3)


@pytest.mark.parametrize("other, length", [
    (131072, 66000), (131072, 90000), (131072, 120000), (5120, 5120), (5120, 3000), (5120, 20000)])
def test_the_recommendation_fits_by_vllms_own_rule_and_few_more_do_not(other, length):
    model = fit_memory_model(launches(*FOUR, (16, 8192, other)), Shape(8192, None, True))
    best = find_optimum(model, Workload(length // 2, length - length // 2)).recommended
    assert holds(best.max_num_seqs, best.max_num_batched_tokens, length)
    assert not holds(best.max_num_seqs * 1.03 + 2, best.max_num_batched_tokens, length)
    assert best.kv_cache_tokens is None and best.concurrency >= best.max_num_seqs


def test_short_requests_get_an_upper_limit_and_are_told_so():
    model = fit_memory_model(launches(*FOUR, (16, 8192, 131072)))
    optimum = find_optimum(model, Workload(15000, 15000))
    best = optimum.recommended
    assert holds(best.max_num_seqs, best.max_num_batched_tokens, 30000)
    assert "request_cost_is_a_limit" in {notice.name for notice in optimum.notices}


def test_one_length_answers_for_requests_near_it_only():
    model = fit_memory_model(launches(*FOUR))
    same = find_optimum(model, Workload(60000, 5536))
    assert holds(same.recommended.max_num_seqs, same.recommended.max_num_batched_tokens, 65536)
    near = find_optimum(model, Workload(30000, 30000)).recommended
    assert holds(near.max_num_seqs, near.max_num_batched_tokens, 60000)
    for far in (Workload(1000, 280), Workload(60000, 10000)):
        optimum = find_optimum(model, far)
        assert optimum.recommended is None
        assert f"--max-model-len {far.length}" in optimum.reason
    assert optimum.method.reason and optimum.to_dict()["method"] is None


def test_without_a_concurrency_the_reason_says_what_is_missing():
    rows = [Launch(max_num_seqs=s, max_num_batched_tokens=b, max_model_len=65536, kv_cache=kv * GIB,
                   warnings=("hybrid_kv",)) for s, b, kv in
            ((256, 2048, 59.0), (1024, 2048, 57.0), (16, 8192, 58.5), (16, 16384, 57.3))]
    assert "max_concurrency" in find_optimum(fit_memory_model(rows), Workload(500, 500)).reason


def test_what_counts_as_several_kinds_of_layers():
    same = Launch(max_model_len=8192, kv_cache_tokens=468144, max_concurrency=57.15)
    other = Launch(max_model_len=131072, kv_cache_tokens=1508112, max_concurrency=22.63)
    assert not is_hybrid([same], None) and is_hybrid([same, other], None)
    assert is_hybrid([same], Shape(4096, None, True)) and not is_hybrid([same], Shape(4096, None))
    printed = Launch(vllm_version="0.19.0", max_model_len=8192, kv_cache_tokens=130304,
                     max_concurrency=15.91)  # google/gemma-3-12b-it there: all layers keep all tokens
    assert not is_hybrid([printed], Shape(7680, None, True))
