"""The optimum against exact bytes worked by hand, vLLM's rules, and its own error bars."""

from fractions import Fraction

import numpy as np
import pytest

from vllm_tuning.answer import find_optimum, fit_memory_model
from vllm_tuning.answer.models import model_of
from vllm_tuning.kv_cache.layout import Shape
from vllm_tuning.launch import Launch
from vllm_tuning.pool import one_sided_quantile
from vllm_tuning.reading.tables import parse_launches
from vllm_tuning.report.contract import recommend_args, recommend_json, recommend_yaml
from vllm_tuning.units import GIB, InputError
from vllm_tuning.workload import Workload

K1, K2, K, KAPPA, BLOCK = 147456, 3094568, 8192, 8192, 32


def exact_optimum(exact_launches, length=1280):
    launches = [
        Launch(
            max_num_seqs=row["max_num_seqs"],
            block_size=BLOCK,
            max_num_batched_tokens=row["max_num_batched_tokens"],
            peak_activation=row["peak_activation_bytes"],
            kv_cache=row["kv_cache_bytes"],
            kv_cache_tokens=row["kv_cache_bytes"] // (BLOCK * KAPPA) * BLOCK,
            exact=True,
        )
        for row in exact_launches
    ]
    model = fit_memory_model(launches, Shape(K, KAPPA))
    return find_optimum(model, Workload(length - 256, 256))


def test_exact_bytes_against_rational_arithmetic(exact_launches):
    """A = KV + P = 4,270,388,675 bytes in every launch; two balances, solved exactly."""
    (a,) = {row["kv_cache_bytes"] + row["peak_activation_bytes"] for row in exact_launches}
    request = 1280 * KAPPA
    tokens = Fraction(a) / (request * Fraction(K1 - K, K2) + K1)
    seqs = tokens * Fraction(K1 - K, K2)
    optimum = exact_optimum(exact_launches)
    assert optimum.max_num_seqs.n == pytest.approx(float(seqs), rel=1e-7)
    assert optimum.max_num_batched_tokens.n == pytest.approx(float(tokens), rel=1e-7)
    best = optimum.recommended
    assert best.max_num_seqs == int(seqs)
    needed = (best.max_num_seqs * 40 + 1) * BLOCK * KAPPA  # and the reserved block
    assert best.max_num_batched_tokens == pytest.approx((a - needed) // K1, abs=3)
    assert best.max_num_batched_tokens >= best.max_num_seqs * K2 // (K1 - K)
    peak = best.max_num_batched_tokens * K1  # beyond point C, with what rounding mns down left
    assert best.kv_cache == pytest.approx(a - peak, abs=100)
    assert best.kv_cache_tokens == (a - peak) // (BLOCK * KAPPA) * BLOCK
    blocks = best.kv_cache_tokens // BLOCK
    assert blocks - 1 >= best.max_num_seqs * 40 and blocks - 1 < (best.max_num_seqs + 1) * 40


def test_printed_figures_lead_to_the_exact_answer_within_their_errors(exact_launches):
    exact = exact_optimum(exact_launches)
    printed = find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 256))
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = getattr(printed, name)
        assert value.s > 0
        assert value.n == pytest.approx(getattr(exact, name).n, abs=2 * value.s)
    assert printed.recommended.max_num_seqs == exact.recommended.max_num_seqs
    assert printed.recommended.kv_cache_tokens == pytest.approx(
        exact.recommended.kv_cache_tokens,
        abs=3 * printed.recommended.kv_cache_tokens_stderr + BLOCK,
    )


def test_the_price_list_against_exact_bytes(exact_launches):
    a = exact_launches[0]["kv_cache_bytes"] + exact_launches[0]["peak_activation_bytes"]
    for price in exact_optimum(exact_launches).prices:

        def fits(seqs, budget=price.max_num_batched_tokens):
            peak = max(K1 * budget, K2 * min(seqs, budget) + K * budget)
            return seqs <= budget and (a - peak) // (BLOCK * KAPPA) - 1 >= seqs * 40

        if price.max_num_seqs:
            assert fits(price.max_num_seqs)
        assert not fits(price.max_num_seqs + 1)


def law(pairs, a, k1, k2, kappa=131072, decimals=2, seed=None, shape=None):
    """Launches of an exact law, printed to 0.01 GiB; optionally with noise in the pool."""
    noise = (
        np.random.default_rng(seed).normal(0, 0.02, len(pairs)) if seed else np.zeros(len(pairs))
    )
    rows = []
    for (seqs, tokens), error in zip(pairs, noise, strict=True):
        pool = a - max(k1 * tokens, k2 * min(seqs, tokens)) / GIB + error
        rows.append(f"{seqs},{tokens},{round(pool, decimals)},{int(pool * GIB / kappa) // 16 * 16}")
    return fit_memory_model(
        parse_launches(
            "max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens\n" + "\n".join(rows)
        ),
        shape,
    )


FOUR = [(128, 512), (512, 512), (16, 2048), (16, 16384)]


def test_rules_of_vllm_over_many_laws():
    """B >= C, whole blocks, and the true pool holds C full requests and the reserved block."""
    draw, held, tried = np.random.default_rng(6), 0, 0
    for _ in range(300):
        a, k1 = draw.uniform(15, 60), draw.uniform(5e4, 4e5)
        k2 = draw.uniform(6 * k1, 40 * k1)
        work = Workload(int(draw.integers(1, 4000)), int(draw.integers(1, 4000)))
        best = find_optimum(law(FOUR, a, k1, k2), work).recommended
        if best is None:
            continue
        tried += 1
        assert best.max_num_batched_tokens >= best.max_num_seqs
        pool = a * GIB - max(k1 * best.max_num_batched_tokens, k2 * best.max_num_seqs)
        held += pool // (16 * 131072) - 1 >= best.max_num_seqs * -(-work.length // 16)
    assert tried > 250 and held >= 0.95 * tried


def test_the_edge_where_the_budget_may_not_fall_below_the_requests():
    """K2 < K1: the branches meet at B < C, so C = B solves A - K1*C = L*kappa*C."""
    a, k1, k2, base = 20.0, 400e3, 150e3, 0.5e9
    columns = (
        "max_num_seqs,max_num_batched_tokens,peak_activation_gib,kv_cache_gib,kv_cache_tokens,"
        "warnings\n"
    )
    rows = []
    flags = (16, 4096), (16, 8192), (16, 16384), (256, 1024), (512, 1024), (1024, 1024)
    for seqs, tokens in flags:
        peak = max(k1 * tokens, base + k2 * seqs)
        rows.append(
            f"{seqs},{tokens},{peak / GIB!r},{a - peak / GIB!r},"
            f"{int((a * GIB - peak) / 4096) // 16 * 16},exact_figures"
        )
    model = fit_memory_model(parse_launches(columns + "\n".join(rows)), Shape(0, 4096))
    optimum = find_optimum(model, Workload(8, 8))
    best = optimum.recommended
    assert optimum.max_num_batched_tokens.n < optimum.max_num_seqs.n
    assert best.max_num_batched_tokens == pytest.approx(best.max_num_seqs, abs=5)
    assert "mnbt_at_least_mns" in names(optimum)
    assert best.max_num_seqs == pytest.approx(a * GIB / (k1 + 16 * 4096), rel=0.001)


@pytest.mark.parametrize("a1, a2", [(300e6, 0), (30e6, 100e6), (0, 200e6)])
def test_intercepts_move_the_recommended_budget_as_the_balance_says(a1, a2):
    """K1*B + a1 = K2*C + k*B + a2 solved for B at the recommended C, with a1 and a2 apart."""
    k1, k2, k, kappa, a = 150e3, 3.1e6, 8192, 131072, 56 * GIB
    rows = [
        "max_num_seqs,max_num_batched_tokens,peak_activation_gib,kv_cache_gib,kv_cache_tokens,"
        "warnings"
    ]
    for seqs, tokens in (*FOUR, (256, 512), (16, 8192)):  # enough to show it
        peak = max(a1 + k1 * tokens, a2 + k2 * seqs + k * tokens)
        rows.append(
            f"{seqs},{tokens},{peak / GIB!r},{(a - peak) / GIB!r},"
            f"{int((a - peak) / kappa) // 16 * 16},exact_figures"
        )
    optimum = find_optimum(
        fit_memory_model(parse_launches("\n".join(rows)), Shape(k, kappa)), Workload(1024, 256)
    )
    best = optimum.recommended
    free = (k2 * best.max_num_seqs + a2 - a1) / (k1 - k)
    needed = (best.max_num_seqs * 80 + 1) * 16 * kappa
    slack = (a - needed - a1) / k1  # what rounding mns down left goes to the budget
    assert best.max_num_batched_tokens == pytest.approx(max(free, slack), abs=3)
    assert 0 <= optimum.max_num_seqs.n - best.max_num_seqs < 1.5


def test_slots_of_drafted_tokens_take_a_block_more():
    """1,280 tokens are 80 blocks of 16; with three tokens drafted ahead of the last, 81."""
    rows = [
        Launch(
            max_num_seqs=seqs,
            max_num_batched_tokens=8192,
            kv_cache=10 * GIB,
            kv_cache_tokens=81920,
            block_size=16,
            speculative_tokens=drafts,
        )
        for seqs, drafts in ((256, 0), (256, 3))
    ]
    answers = [
        find_optimum(fit_memory_model([row]), Workload(1024, 256)).recommended for row in rows
    ]
    assert [best.max_num_seqs for best in answers] == [5119 // 80, 5119 // 81]
    assert [best.needed_tokens for best in answers] == [(63 * 80 + 1) * 16, (63 * 81 + 1) * 16]


def test_point_c_is_not_followed_far_beyond_the_launches():
    """The branches meet at 588 requests * 3e6 / 20e3 = 88,000 tokens, 16,384 were launched."""
    model = law(FOUR, 20, 20e3, 3e6, shape=Shape(0, 131072))
    optimum = find_optimum(model, Workload(128, 128))
    assert optimum.max_num_batched_tokens.n > 70_000
    assert optimum.recommended.max_num_batched_tokens == 2 * 16384
    assert "beyond_launches" in names(optimum)
    read = find_optimum(model, Workload(1000, 4))  # 156 need 156 * 1003 / 4 = 39,117 tokens a step
    assert read.recommended.max_num_batched_tokens < 39_000 and "budget_below_need" in names(read)
    assert "budget_below_need" not in names(optimum)


def test_without_chunked_prefill_the_budget_holds_the_longest_prompt():
    model = model_of(["llama-3-8b-2-layers"])  # max_model_len 2048
    chunked, whole = (
        find_optimum(model, Workload(16, 1984), chunked_prefill=on).recommended
        for on in (True, False)
    )
    assert chunked.max_num_batched_tokens >= 2048 and whole == chunked
    long = find_optimum(law(FOUR, 20, 150e3, 3e6), Workload(60_000, 1000), chunked_prefill=False)
    assert long.recommended.max_num_batched_tokens == 61_000


def test_student_t_where_residuals_set_the_error():
    pairs = [*FOUR, (256, 512), (16, 8192)]
    noisy = law(pairs, 20, 150e3, 3e6, seed=4)
    assert noisy.chi2 > noisy.dof == 2
    # of a table: 4 degrees of freedom, 2 of them those of the law on other servers; normal
    assert one_sided_quantile(noisy) == pytest.approx(2.132, abs=5e-4)
    assert one_sided_quantile(law(FOUR, 20, 150e3, 3e6)) == pytest.approx(1.645, abs=5e-4)


def names(optimum):
    return [notice.name for notice in optimum.notices]


def test_warnings_of_scope_and_range():
    model = model_of(["llama-3-8b-2-layers"])  # max_model_len 2048, mns 16 - 512, mnbt 512 - 8192
    assert names(find_optimum(model, Workload(1024, 256))) == []
    assert names(find_optimum(model, Workload(1900, 100))) == ["input_much_longer_than_output"]
    assert names(find_optimum(model, Workload(1024, 1025))) == ["beyond_max_model_len"]
    assert names(find_optimum(model, Workload(16, 16))) == ["beyond_launches", "beyond_launches"]


def test_a_pool_too_small_for_one_request():
    optimum = find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(400_000, 400_000))
    assert optimum.recommended is None and "negative_pool" in names(optimum)
    assert "not one request of 800,000 tokens" in optimum.reason


def test_what_is_not_known_is_null_with_a_reason():
    answer = recommend_json(find_optimum(model_of(["qwen3.5-4b-a30"]), Workload(1024, 256)))
    assert answer["recommended"] is None and answer["recommended_reason"].startswith("K2 ")
    assert answer["refined"]["k2"] is None and answer["refined"]["max_num_seqs"] is None
    assert answer["refined"]["k1"] == pytest.approx(111_280, abs=250)
    assert len(answer["next_launches"]) == 2 and answer["prices"] == []


def test_peaks_without_a_pool_give_no_answer():
    optimum = find_optimum(model_of(["vllm-0.32-profile-grid"]), Workload(1024, 256))
    assert optimum.recommended is None and "the pool is not known" in optimum.reason


def test_yaml_for_vllm_serve():
    optimum = find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 256))
    lines = dict(
        line.split(": ") for line in recommend_yaml(optimum).splitlines() if line[0] != "#"
    )
    assert lines == {
        "max-num-seqs": str(optimum.recommended.max_num_seqs),
        "max-num-batched-tokens": str(optimum.recommended.max_num_batched_tokens),
        "gpu-memory-utilization": "0.6",
        "max-model-len": "2048",
    }
    assert recommend_args(optimum) == " ".join(f"--{name} {value}" for name, value in lines.items())
    for form in (recommend_yaml, recommend_args):  # a server would start on its defaults
        with pytest.raises(InputError, match="no recommendation: K2 is not known"):
            form(find_optimum(model_of(["qwen3.5-4b-a30"]), Workload(8, 8)))
    long = recommend_yaml(find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 2048)))
    assert long.startswith("# beyond_max_model_len: ")


def test_without_a_config_the_answer_still_fits_whatever_the_hidden_size():
    """True k from 2 to 16 KiB, never told: the true pool holds the recommended requests."""
    draw, held, tried = np.random.default_rng(8), 0, 0
    for _ in range(200):
        a, k1, k = draw.uniform(15, 60), draw.uniform(8e4, 4e5), draw.choice([2048, 8192, 16384])
        k2 = draw.uniform(8 * k1, 40 * k1)
        rows = ["max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens"]
        for seqs, tokens in FOUR:
            pool = a * GIB - max(k1 * tokens, k2 * seqs + k * tokens)
            rows.append(f"{seqs},{tokens},{pool / GIB:.2f},{int(pool / 131072) // 16 * 16}")
        work = Workload(int(draw.integers(1, 4000)), int(draw.integers(1, 4000)))
        try:
            best = find_optimum(fit_memory_model(parse_launches("\n".join(rows))), work).recommended
        except InputError:
            continue
        if best:
            tried += 1
            peak = max(
                k1 * best.max_num_batched_tokens,
                k2 * best.max_num_seqs + k * best.max_num_batched_tokens,
            )
            blocks = (a * GIB - peak) // (16 * 131072)
            held += blocks - 1 >= best.max_num_seqs * -(-work.length // 16)
    assert tried > 150 and held >= 0.95 * tried


@pytest.mark.parametrize("lengths", [(0, 8), (8, 0), (-1, 8)])
def test_a_workload_without_tokens_is_refused(lengths):
    with pytest.raises(ValueError):
        Workload(*lengths)
