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
    assert cost.per_token.n == pytest.approx(36 * 1024, rel=5e-4)
    assert abs(cost.per_token.n - 36 * 1024) < 3 * cost.per_token.s
    by_hand = 35.2 / (950420 / 65536) * GIB
    assert cost.at(65536).n == pytest.approx(by_hand, rel=1e-9)


def test_the_three_terms_against_the_rule():
    cost = fit_request_cost(launches(*FOUR, (16, 8192, 131072)))
    page = PAGE * FULL / BLOCK  # bytes of a token in one group
    assert cost.per_token.n == pytest.approx(page, rel=2e-3)
    assert cost.per_budget.n == pytest.approx(SLIDING / FULL * page, rel=0.02)
    for length, budget in ((65536, 2048), (131072, 8192), (100000, 16384)):
        predicted = cost.at(length) + cost.per_budget * budget
        assert predicted.n == pytest.approx(blocks_of(length, budget) * PAGE * FULL, rel=2e-3)


@pytest.mark.parametrize("length", [66000, 90000, 120000])
def test_the_recommendation_fits_by_vllms_own_rule_and_two_more_do_not(length):
    model = fit_memory_model(launches(*FOUR, (16, 8192, 131072)), Shape(8192, None, True))
    best = find_optimum(model, Workload(length // 2, length - length // 2)).recommended
    assert holds(best.max_num_seqs, best.max_num_batched_tokens, length)
    assert not holds(best.max_num_seqs + 2, best.max_num_batched_tokens, length)
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
