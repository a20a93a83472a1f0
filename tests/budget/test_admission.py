"""mns from percentiles and from a risk, against counting by hand and drawing."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from vllm_tuning.budget.admission import RunningRequest, seqs_by_length, seqs_for_risk
from vllm_tuning.cli import main
from vllm_tuning.kv_cache.layout import CacheLayout, Group
from vllm_tuning.reading.lengths import lengths_from_histograms
from vllm_tuning.reading.scrape_series import lengths_of
from vllm_tuning.units import InputError
from vllm_tuning.workload import Workload

PLAIN = CacheLayout((Group("full", 32, 16),), 2**21, 2**17, 16)


def test_the_seeds_rule():
    """449k tokens / 2,400 = 187, so about 160."""
    blocks = 449_616 // 16 + 1
    assert seqs_by_length(PLAIN, blocks, 2400, 8192, 1.0) == 187
    assert seqs_by_length(PLAIN, blocks, 2400, 8192) == pytest.approx(160, abs=2)


def test_one_request_by_hand():
    """16 + 16 tokens: its 16 steps hold 17 to 32 tokens, two blocks each; 15 + 2: one, or two."""
    request = RunningRequest(PLAIN, [16], [16], 1)
    assert (request.mean, request.spread, request.most) == (2, 0, 2)
    assert (request.overflow(2, 3), request.overflow(2, 4)) == (1, 0)
    assert (request.seqs_at(0.01, 9), request.seqs_at(0.01, 10)) == (4, 5)
    request = RunningRequest(PLAIN, [15], [2], 1)
    assert (request.mean, request.spread, request.most) == (1.5, 0.5, 2)
    assert request.overflow(2, 4) == 0
    assert request.overflow(2, 2) == pytest.approx(0.76, abs=0.01)  # 0.75: one of the two takes two
    assert request.overflow(100, 160) == pytest.approx(0.0179, abs=1e-3)  # binomial, above 60


def test_a_long_output_is_met_more_often():
    """Outputs of 16 and 48: of four steps met, three belong to the longer one."""
    request = RunningRequest(PLAIN, [16, 160], [16, 48], 1)
    met = np.array([2, 11, 12, 13])
    assert request.mean == met.mean() and request.spread == pytest.approx(met.std())


def drawn_risk(inputs, outputs, seqs, usable, times=20_000):
    """How often so many running requests, drawn from the lengths, take more than the pool."""
    rng = np.random.default_rng(5)
    met = rng.choice(len(outputs), (times, seqs), p=outputs / outputs.sum())
    held = np.ceil((inputs[met] + np.ceil(rng.random(met.shape) * outputs[met])) / 16)
    return (held.sum(axis=1) > usable).mean()


@pytest.mark.parametrize("file", ["skewed", "chat-lengths.csv"])
@pytest.mark.parametrize("blocks", [3400, 8000])
@pytest.mark.parametrize("risk", [0.01, 0.2])
def test_the_risk_against_drawing(file, blocks, risk):
    """Long tails, 28 to 130 requests at once: within a hundredth, and 1 % is not 2 %."""
    if file == "skewed":
        rng = np.random.default_rng(5)
        inputs, outputs = (rng.lognormal(mean, 0.8, 500).astype(int) + 1 for mean in (6.5, 6))
    else:
        read = lengths_of(ROOT / "data" / file)
        inputs, outputs = np.array([(each.input_len, each.output_len) for each in read]).T
    found = seqs_for_risk(RunningRequest(PLAIN, inputs, outputs, 8192), blocks, risk)
    drawn = drawn_risk(inputs, outputs, found.max_num_seqs, blocks - 1)
    assert drawn == pytest.approx(found.probability, abs=0.01)
    assert drawn < 1.5 * risk + 3 * np.sqrt(risk * (1 - risk) / 20_000)


def test_a_pool_of_millions_of_blocks_takes_no_longer():
    """18 million blocks, 1.5 on average: 2.326 standard deviations of 0.5 * sqrt(n) below."""
    request = RunningRequest(PLAIN, [15], [2], 1)
    seqs = request.seqs_at(0.01, 18_000_000)
    assert seqs == pytest.approx(12_000_000 - 2.326 * 0.5 * 12_000_000**0.5 / 1.5, abs=10)


def test_the_largest_number_at_a_risk():
    request = RunningRequest(PLAIN, [100, 1000, 4000], [50, 200, 900], 1)
    for risk in (0.2, 0.01, 1e-6):
        found = seqs_for_risk(request, 5000, risk)
        assert found.probability <= risk < request.overflow(found.max_num_seqs + 1, 4999)
        assert request.overflow(found.max_num_seqs, 4999) == found.probability
    with pytest.raises(InputError, match="risk"):
        seqs_for_risk(request, 5000, 0.0)


METRICS = """# HELP vllm:request_prompt_tokens Number of prefill tokens processed.
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 50.0
vllm:request_prompt_tokens_bucket{engine="0",le="2000.0",model_name="m"} 100.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="200.0",model_name="m"} 90.0
vllm:request_generation_tokens_bucket{engine="0",le="500.0",model_name="m"} 99.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
"""


def scraped(tmp_path, text):
    (tmp_path / "metrics.prom").write_text(text)
    return lengths_of(tmp_path / "metrics.prom")


def test_lengths_of_a_scrape(tmp_path):
    """Without their sum, requests stand at the upper ends."""
    lengths = scraped(tmp_path, METRICS)
    assert len(lengths) == 100
    assert [each.input_len for each in lengths] == [1000] * 50 + [2000] * 50
    assert [each.output_len for each in lengths] == [200] * 90 + [500] * 9 + [1000]
    two = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    assert scraped(tmp_path, two) == lengths
    with pytest.raises(InputError, match="prompt"):
        scraped(tmp_path, "vllm:num_requests_running 0\n")


def test_lengths_of_scrapes_over_time_are_those_between_the_first_and_the_last():
    """128 requests of 128 + 128 tokens, in 28 scrapes of one file."""
    lengths = lengths_of(ROOT / "data/load/mns24.prom")
    assert {(each.input_len, each.output_len) for each in lengths} == {(128, 128)}


@pytest.mark.parametrize(
    "old, new",
    [
        ('le="1000.0"', 'le="nan"'),
        ('le="1000.0"', 'le="1e300"'),
        ('le="1000.0"', 'le="-3"'),
        (" 50.0", " inf"),
        (" 50.0", " -5"),
    ],
)
def test_a_histogram_that_is_none(old, new, tmp_path):
    with pytest.raises(InputError, match="prompt_tokens_bucket"):
        scraped(tmp_path, METRICS.replace(old, new))


@pytest.mark.parametrize("bounds", [{float("inf"): 8}, {10.0: 0, float("inf"): 8}])
def test_a_mean_beyond_the_last_end_is_kept(bounds):
    """All eight are longer than any end, and 500 tokens in the mean."""
    lengths = lengths_from_histograms((bounds, 500.0), ({200.0: 8, float("inf"): 8}, 200.0))
    assert {(each.input_len, each.output_len) for each in lengths} == {(500, 200)}


def test_lengths_of_a_histogram_with_its_mean_by_hand():
    """Half in (50, 100], half in (100, 200], mean 120 = 75 + 0.6 * 75: at 0.6, so 80 and 160."""
    prompt = {50.0: 0, 100.0: 50, 200.0: 100, float("inf"): 100}, 120.0
    lengths = lengths_from_histograms(prompt, ({100.0: 0, 200.0: 7, float("inf"): 7}, 128.0))
    assert [each.input_len for each in lengths] == [80] * 50 + [160] * 50
    assert {each.output_len for each in lengths} == {128}


@pytest.mark.parametrize(
    "name, text",
    [
        ("lengths.csv", "prompt_tokens,output_tokens\n" + "1000,200\n" * 95 + "2000,500\n" * 5),
        ("metrics.prom", METRICS),
    ],
)
def test_the_command_reads_requests(name, text, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            }
        )
    )
    (tmp_path / name).write_text(text)
    flags = ["budget", str(tmp_path), "--kv-cache-gib", "54.8", "--lengths", str(tmp_path / name)]
    answer = json.loads(CliRunner().invoke(main, [*flags, "--json"]).stdout)
    length = 1200 if name.endswith("csv") else 2500
    assert answer["max_num_seqs"] == int(28056 / -(-length // 16) * 0.85)
    risk = answer["max_num_seqs_at_risk"]
    assert risk["probability"] <= 0.01 and risk["max_num_seqs"] > answer["max_num_seqs"] / 2
    text = CliRunner().invoke(main, flags).stdout
    assert "95th percentile" in text and max(map(len, text.splitlines())) <= 80


def test_workloads_are_taken_as_they_are():
    running = RunningRequest(PLAIN, [Workload(7, 9).input_len], [9], 1)
    assert running.mean == 1
