"""Another utilization: by hand, and against launches made there."""

import math

import pytest

from vllm_tuning import Launch, Workload, find_optimum, fit_memory_model, model_of
from vllm_tuning.explorer.utilization import at_utilization
from vllm_tuning.report import recommend_yaml
from vllm_tuning.units import GIB, InputError

NAME = "llama-3-8b-2-layers"  # 10 GiB at 0.6, 8,192 bytes a token
KAPPA = 131072  # Llama 3.1 8B: 2 x 32 layers x 8 heads x 128 x 2 bytes


def card(utilization=0.92, total=79.1):
    """Exact launches of an 8B model: K1 150 kB a token, K2 3 MB a request, 20 GiB of the rest."""
    launches = []
    for seqs, tokens in ((128, 512), (512, 512), (16, 2048), (16, 8192)):
        peak = max(150_000 * tokens, 3_000_000 * min(seqs, tokens))
        pool = total * GIB * utilization - 20 * GIB - peak
        launches.append(
            Launch(
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                total_memory=total * GIB,
                gpu_memory_utilization=utilization,
                kv_cache=pool,
                block_size=16,
                kv_cache_tokens=math.floor(pool / KAPPA / 16) * 16,
            )
        )
    return fit_memory_model(launches)


def test_one_percent_of_the_card_is_0_79_gib_and_about_6500_tokens():
    model = card()
    more = at_utilization(model, 0.93).pool(16, 2048) - model.pool(16, 2048)
    assert more.n == pytest.approx(0.01 * 79.1 * GIB)
    assert more.n / KAPPA == pytest.approx(6480, abs=1)


def test_its_error_is_the_rounding_of_the_card_times_the_step():
    model = card()
    moved = at_utilization(model, 0.93).pool_at_zero_tokens - model.pool_at_zero_tokens
    assert moved.s == pytest.approx(0.005 * GIB / math.sqrt(3) * 0.01, rel=1e-6)


def test_it_is_the_answer_of_launches_made_there():
    derived = find_optimum(at_utilization(card(), 0.85), Workload(1024, 256))
    there = find_optimum(card(utilization=0.85), Workload(1024, 256))
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        assert getattr(derived, name).n == pytest.approx(getattr(there, name).n, rel=1e-4)
        assert getattr(derived.recommended, name) == pytest.approx(
            getattr(there.recommended, name), rel=2e-3
        )
    for ours, theirs in zip(derived.model.launches, there.model.launches, strict=True):
        assert ours.launch.kv_cache == pytest.approx(theirs.launch.kv_cache)
        assert ours.launch.kv_cache_tokens == pytest.approx(theirs.launch.kv_cache_tokens, abs=32)


def test_it_says_that_it_is_derived_and_what_was_launched():
    (notice,) = [n for n in at_utilization(card(), 0.95).notices if n.name == "derived_setting"]
    assert "0.95 instead of 0.92" in notice.text
    assert "gpu-memory-utilization: 0.95" in recommend_yaml(
        find_optimum(at_utilization(card(), 0.95), Workload(1024, 256))
    )


def test_as_launched_changes_nothing():
    model = model_of([NAME])
    assert at_utilization(model, None) is model and at_utilization(model, 0.6) is model


def test_what_the_launches_do_not_give_is_refused_with_the_reason():
    with pytest.raises(InputError, match="not known"):
        at_utilization(model_of(["qwen3.5-4b-a30"]), 0.8)


@pytest.mark.parametrize("utilization", [1.2, 0, -1, float("nan")])
def test_a_value_out_of_range_is_refused(utilization):
    with pytest.raises(InputError, match="utilization is"):
        at_utilization(model_of([NAME]), utilization)
