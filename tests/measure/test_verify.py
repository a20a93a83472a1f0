"""Predicted against printed: held-out launches of vLLM's own accounting; the report's section."""

import json

import pytest
from conftest import ROOT

from vllm_tuning import Launch, Workload, find_optimum, fit_memory_model, model_of, read_launches
from vllm_tuning.kv_cache.layout import read_shape
from vllm_tuning.measure.verify import verified, verify_launch
from vllm_tuning.reading.log import read_log
from vllm_tuning.reading.tables import DATA, write_launches
from vllm_tuning.report import sections
from vllm_tuning.units import GIB

TWO_LAYERS = ROOT / "data/llama-3-8b-2-layers"
SHARED = ROOT.parent / "shared/oracle/logs"
REQUESTS = Workload(1024, 256)


def of_others(launches, held_out):
    others = [launch for launch in launches if launch is not held_out]
    model = fit_memory_model(others, read_shape(TWO_LAYERS / "config.json"))
    return verify_launch(find_optimum(model, REQUESTS), held_out)


@pytest.mark.parametrize("held_out", range(3))
def test_a_held_out_launch_is_predicted_within_its_error_bars(held_out, exact_launches):
    """Each of the model run's launches, from those printed to 0.01 GiB; the truth in bytes."""
    launches = read_launches(TWO_LAYERS)
    launch = launches[held_out]
    found = of_others(launches, launch)
    truth = (
        next(
            row["kv_cache_bytes"]
            for row in exact_launches
            if (row["max_num_seqs"], row["max_num_batched_tokens"])
            == (launch.max_num_seqs, launch.max_num_batched_tokens)
        )
        / GIB
    )
    assert len(found.checks) == 3 and all(check.within for check in found.checks)
    pool = found.checks[0].predicted
    assert abs(truth - pool.n) < 2 * pool.s and pool.s < 0.002  # a fifth of the printed digit
    assert "As predicted" in found.verdict


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/oracle/logs")
def test_the_simulated_device_predicts_a_launch_to_bytes():
    """Real logs of five launches, and the bytes behind them; without one of the two that give K2
    it follows from a1 = a2."""
    truth = {
        (row["mns"], row["mnbt"]): row["kv_bytes"]
        for row in map(json.loads, (SHARED / "launches.jsonl").read_text().splitlines())
        if row["model"].endswith("l8b2")
    }
    launches = [
        launch
        for path in sorted(SHARED.glob("fakegpu_l8b2_mns*_mnbt*.log"))
        if "INFO" not in path.name
        for launch in read_log(path)
    ]
    verified = {
        (each.max_num_seqs, each.max_num_batched_tokens): of_others(launches, each)
        for each in launches
    }
    assert len(launches) == 5
    for flags, found in verified.items():
        pool = found.checks[0].predicted * GIB
        assert all(check.within for check in found.checks), flags
        assert abs(pool.n - truth[flags]) <= max(2 * pool.s, 1)


def law(seqs, tokens, more=0, **figures):
    """A launch by the law of the two layers, with ``more`` bytes taken from its pool."""
    peak = max(147456 * tokens, 3094568 * seqs + 8192 * tokens) + more
    pool = 6442450944 - 2172062269 - peak
    return Launch(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        kv_cache=float(pool),
        peak_activation=float(peak),
        block_size=32,
        kv_cache_tokens=pool // (32 * 8192) * 32,
        exact=True,
        **figures,
    )


def optimum():
    launches = [law(*flags) for flags in ((128, 512), (512, 512), (16, 2048), (16, 8192))]
    model = fit_memory_model(launches, read_shape(TWO_LAYERS / "config.json"))
    return find_optimum(model, REQUESTS)


@pytest.mark.parametrize(
    "more, says, holds",
    [
        (0, "As predicted", True),
        (10 * 2**20, "Close, but outside of the error bars", False),
        (200 * 2**20, "Not as predicted", False),
        (-200 * 2**20, "Not as predicted", True),
    ],
)
def test_verdicts(more, says, holds):
    best = optimum().recommended
    found = verify_launch(optimum(), law(best.max_num_seqs, best.max_num_batched_tokens, more))
    assert says in found.verdict and found.holds == holds
    assert ("never preempt" in found.verdict) == holds
    blocks = found.launch.kv_cache_tokens // 32 - 1
    assert found.requests == pytest.approx(blocks / 40)  # 1,280 tokens are 40 blocks


def test_a_check_launch_that_failed():
    best = optimum().recommended
    flags = {
        "max_num_seqs": best.max_num_seqs,
        "max_num_batched_tokens": best.max_num_batched_tokens,
    }
    found = verify_launch(optimum(), Launch(status="failed", error="it died", **flags))
    assert found.verdict == "Not verified: it died." and found.holds is None
    found = verify_launch(optimum(), law(*flags.values(), status="failed", error="out of memory"))
    assert found.verdict.startswith("It did not come up: out of memory. Its figures until then:")


def checked(folder):
    """The folder, with check launches at other flags and at the recommended ones."""
    best = optimum().recommended
    write_launches(
        [law(99, 999), law(best.max_num_seqs, best.max_num_batched_tokens)], folder / "verify.csv"
    )
    return folder


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "own"
    write_launches(
        [law(*flags) for flags in ((128, 512), (512, 512), (16, 2048), (16, 8192))],
        folder / "launches.csv",
    )
    (folder / "config.json").write_text((TWO_LAYERS / "config.json").read_text())
    return folder


def test_the_check_launch_is_shown_where_it_is_at_the_recommended_flags(folder):
    """The section of the report; in a whole one it stands in test_report.py."""
    assert sections.check_launch([folder], optimum()) == ""
    write_launches([law(99, 999)], folder / "verify.csv")
    assert sections.check_launch([folder], optimum()) == ""  # at other flags
    assert "As predicted" in sections.check_launch([checked(folder)], optimum())


def test_the_real_vllm_to_the_byte_is_as_predicted_but_for_the_granules_of_its_tensors():
    """Four launches of vLLM 0.32 in bytes, the fifth at the answer: 3,708 bytes beside the law."""
    folder = DATA / "tiny-llama-simulated"
    found = verified(
        [folder / "launches.csv"],
        find_optimum(model_of([folder / "launches.csv"]), Workload(512, 512)),
    )
    assert found.verdict.startswith("As predicted") and found.holds
    pool = found.checks[0]
    assert pool.measured.n * GIB == 608_387_072
    assert pool.difference.n * GIB == pytest.approx(-3708, abs=600)  # of two runs that meet
