"""The planner: its rule, measured grids that judge it, and what is missing beside launches."""

import json
import math
import os

import pytest
from click.testing import CliRunner
from conftest import ROOT
from profile_grids import SHARED, carried, grids

from vllm_tuning import GIB, Workload, model_of
from vllm_tuning.budget.capacity import capacity
from vllm_tuning.cli import main
from vllm_tuning.measure.plan import plan_launches

CONFIGS = sorted((ROOT / "data").glob("*/config.json"))


def run(*args):
    return CliRunner().invoke(main, ["plan", *map(str, args)])


def flags(launches):
    return [(launch["max_num_seqs"], launch["max_num_batched_tokens"]) for launch in launches]


def test_without_a_config_the_four_of_the_readme():
    answer = json.loads(run("--json").stdout)
    assert flags(answer["launches"]) == [(128, 512), (512, 512), (16, 2048), (16, 8192)]
    readme = (ROOT / "README.md").read_text()
    for seqs, tokens in flags(answer["launches"]):
        assert f"--max-num-seqs {seqs:<4} --max-num-batched-tokens {tokens}" in readme
        assert (
            f"vllm serve MODEL --max-num-seqs {seqs} --max-num-batched-tokens {tokens}\n"
            in run().stdout
        )


@pytest.mark.parametrize("grid", grids(), ids=lambda grid: grid.name)
def test_a_plan_of_four_answers_as_all_rows_do(grid, tmp_path):
    """Peaks of vLLM's own profile run, printed as a log rounds them; within 0.12 %."""
    config = grid.config(tmp_path)
    four = grid.planned(config)
    assert len(set(four)) == 4 and grid.error(four, config) <= 0.0015


def test_random_plans_of_four_do_worse(tmp_path):
    grid = carried()
    config = grid.config(tmp_path)
    errors = [grid.error(plan, config) for plan in grid.random_plans(40)]
    assert sum(error <= 0.005 for error in errors) < 20 < sum(map(math.isinf, errors))


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/oracle/P")
def test_each_launch_lies_in_its_branch(tmp_path):
    """As measured: the peak of the sampler's run, and that of the model's, set the whole one."""
    for grid in grids():
        low, high, few, many = grid.planned(grid.config(tmp_path))
        seqs, tokens = (
            (grid.peaks[b] - grid.peaks[a]) / (b[axis] - a[axis])
            for (a, b), axis in (((low, high), 0), ((few, many), 1))
        )
        assert grid.peaks[low] == pytest.approx(seqs * low[0], rel=0.02), grid.name
        assert grid.peaks[few] == pytest.approx(tokens * few[1], rel=0.02), grid.name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("gpu", ["H100", "A100-40GB", "RTX-3090", None])
@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", None])
def test_the_rules_of_vllm_and_of_the_plan(config, gpu, version):
    plan = plan_launches(
        config, Workload(1024, 256), max_model_len=4096, gpu=gpu, vllm_version=version
    )
    (c1, b1), (c2, b2), (c3, b3), (c4, b4) = (
        (launch.max_num_seqs, launch.max_num_batched_tokens) for launch in plan.launches
    )
    assert all(seqs <= tokens for seqs, tokens in ((c1, b1), (c2, b2), (c3, b3), (c4, b4)))
    assert c1 >= 128 and 2 * c1 <= c2 and b1 >= 512 and b3 >= 2048 and 2 * b3 <= b4 and c3 == c4


@pytest.mark.parametrize(
    "shape, planned",
    [
        # 6.64*(4096 + 14336) - 8192 = 114,196 bytes a token; 14.94*128256 = 1,916,145 a request
        ((4096, 14336, 128256), [(128, 512), (512, 512), (16, 2048), (16, 8192)]),
        # a vocabulary of 32,000: 478,080 a request, so that 184 outweigh 512 tokens by half
        ((4096, 14336, 32000), [(256, 512), (1024, 1024), (16, 2048), (16, 8192)]),
        # 6.64*(256 + 1024) - 512 = 7,987 a token, so that 16 requests outweigh 3,838 tokens
        ((256, 1024, 128256), [(128, 512), (512, 512), (16, 8192), (16, 32768)]),
    ],
)
def test_each_launch_is_in_its_branch_by_half_by_the_shapes(tmp_path, shape, planned):
    config = tmp_path / "config.json"
    names = ("hidden_size", "intermediate_size", "vocab_size")
    more = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8}
    config.write_text(
        json.dumps({"model_type": "llama", **dict(zip(names, shape, strict=True)), **more})
    )
    assert flags(json.loads(run(config, "--json").stdout)["launches"]) == planned


@pytest.mark.parametrize(
    "gib, seqs, tokens, notes",
    [(24, 512, 8192, 0), (22.3, 256, 4096, 0), (22, 256, 4096, 2), (21.5, 512, 8192, 1)],
)
def test_a_launch_that_does_not_fit_is_lowered_or_named(gib, seqs, tokens, notes):
    """Beside one request of 32,768 tokens, 4 GiB in Llama 3.1 8B, and a peak of 2 MB a request."""
    config, gpu = ROOT / "data/llama-3.1-8b-rtx3090/config.json", gib * GIB
    plan = plan_launches(config, gpu_memory=gpu, max_model_len=32768)
    _, many, _, long = plan.launches
    assert (many.max_num_seqs, long.max_num_batched_tokens) == (seqs, tokens)
    assert len(plan.notes) == notes + 1 and "keep the second log" in plan.notes[-1]
    budget = capacity(config, gpu_memory=gpu, max_model_len=32768).budget
    taken = sum(part.value for part in budget.parts if part.name not in ("activation", "pool"))
    room = budget.requested - taken - 4 * GIB
    fits = {seqs: 14.94 * 128256 * seqs + 8192 * 512 <= room for seqs in (256, 512)}
    assert (room > 0) == (gib > 21.5) and (fits[512], fits[256]) == {
        24: (True, True),
        22.3: (False, True),
        22: (False, False),
        21.5: (False, False),
    }[gib]


def test_without_chunked_prefill_a_step_holds_a_whole_prompt():
    config = ROOT / "data/llama-3.1-8b-rtx3090/config.json"
    answer = json.loads(
        run(
            config,
            "--gpu",
            "H100",
            "--input-len",
            1024,
            "--output-len",
            256,
            "--max-model-len",
            8192,
            "--no-chunked-prefill",
            "--json",
        ).stdout
    )
    assert all(tokens >= 8192 for _, tokens in flags(answer["launches"]))
    seqs = flags(answer["launches"])[0][0]
    assert 14.9 * 128256 * seqs > (6.65 * (4096 + 14336) - 8192) * 8192  # the sampler's branch


def test_enough_where_nothing_is_missing():
    asked = "llama-3-8b-2-layers", "--input-len", 1024, "--output-len", 256
    answer = json.loads(run(*asked, "--json").stdout)
    assert answer["enough"] and answer["next"] is None and answer["launches"] == []
    assert "Enough" in answer["why"] and "Enough" in run(*asked).stdout


def test_where_no_launch_of_the_two_flags_would_help(tmp_path):
    """Tokens without bytes and without config.json: no other flags give the bytes of a token."""
    (tmp_path / "launches.csv").write_text(
        "max_num_seqs,max_num_batched_tokens,peak_activation_gib\n"
        "128,512,0.37\n512,512,1.48\n16,2048,0.28\n16,8192,1.12\n"
    )
    asked = tmp_path, "--input-len", 1024, "--output-len", 256
    answer = json.loads(run(*asked, "--json").stdout)
    assert not answer["enough"] and answer["launches"] == []
    assert answer["why"].startswith("No launch of these two flags would help: the KV cache of one")


def test_what_is_unknown_comes_first_and_is_told_once():
    """The same launch as fit and recommend name."""
    answer = json.loads(
        run("qwen3.5-4b-a30", "--input-len", 1024, "--output-len", 256, "--json").stdout
    )
    first = model_of(["qwen3.5-4b-a30"]).next_launches[0]
    assert answer["next"]["max_num_seqs"] == first.max_num_seqs and not answer["enough"]
    assert answer["launches"][0] == answer["next"]


def test_an_assumed_k_is_worth_a_launch(tmp_path):
    """Without config.json and with one budget in group 1 hidden states stay open: up to 20 KiB."""
    (tmp_path / "launches.csv").write_text(
        "max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens,block_size\n"
        "128,512,3.6,472416,32\n512,512,2.5,327360,32\n16,2048,3.7,484416,32\n"
        "16,8192,2.85,373824,32\n"
    )
    answer = json.loads(run(tmp_path, "--input-len", 1024, "--output-len", 256, "--json").stdout)
    seqs, tokens = answer["next"]["max_num_seqs"], answer["next"]["max_num_batched_tokens"]
    assert tokens > 512 and 3094568 * seqs > 147456 * tokens  # another budget, the sampler's branch


@pytest.mark.parametrize(
    "args, code, named",
    [
        (["nowhere", "--input-len", 5, "--output-len", 5], 1, "nowhere"),
        (["llama-3-8b-2-layers"], 2, "--input-len"),
        (["llama-3-8b-2-layers", "--input-len", 5, "--output-len", 5, "--gpu", "T4"], 2, "--gpu"),
        (["--no-chunked-prefill"], 1, "max_model_len"),
        (["--vllm-version", "new"], 2, "new"),
        (["--input-len", 5], 2, "together"),
        (["--gpu", "H7"], 2, "H7"),
        ([CONFIGS[0], CONFIGS[1]], 2, "one CONFIG"),
        ([os.devnull + ".json"], 1, "null.json"),
    ],
)
def test_bad_input_is_one_line(args, code, named):
    done = run(*args)
    assert done.exit_code == code and named in done.stderr and "Traceback" not in done.output
    assert code == 2 or done.stderr.count("\n") == 1
