"""The planner: its rules, measured grids that judge it, and the one next launch."""

import json
import math
import os

import pytest
from click.testing import CliRunner
from conftest import ROOT
from profile_grids import SHARED, carried, grids
from uncertainties import ufloat

from vllm_tuning import GIB, Workload, find_optimum, model_of
from vllm_tuning.cli import main
from vllm_tuning.measure.plan import next_launch, plan_launches, slope_error

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
    """Peaks of vLLM's own profile run, printed as a log rounds them; within 0.5 %."""
    config = grid.config(tmp_path)
    four = grid.planned(config)
    assert len(set(four)) == 4 and grid.error(four, config) <= 0.005


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
    assert 2 * c1 <= c2 and 2 * b3 <= b4 and c3 == c4 and min(b1, b2, b3) >= 128
    if plan.expected and plan.expected[0] >= 128:
        assert c1 >= 128
    if plan.expected and not plan.notes:
        assert c1 <= plan.expected[0] and b3 <= plan.expected[1]


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


def test_the_error_of_a_slope_by_hand():
    """Two readings, each off by s: sqrt(2) s / distance; 0.01 GiB leave s = 0.005 GiB / sqrt(3)."""
    assert slope_error((128, 512), 3.0) == pytest.approx(math.sqrt(2) * 3 / 384)
    rounding = 0.005 * GIB / math.sqrt(3)
    assert slope_error((128, 512), rounding) < 0.01 * 14.94 * 128256


def test_the_next_launch_shrinks_the_error_by_what_it_says(tmp_path):
    """Predicted before it is made, from pools printed to 0.01 GiB, against the fit with it in."""
    grid = next((grid for grid in grids() if grid.name == "l8b2, gpu, native_inplace"), None)
    if grid is None:
        pytest.skip("needs ../shared/oracle/P")
    config, short = grid.config(tmp_path), Workload(32, 32)
    four = [(128, 512), (256, 512), (16, 1024), (16, 2048)]  # too close together

    def seqs(flags, **printed):
        return grid.optimum(flags, config, requests=short, **printed).max_num_seqs

    step = next_launch(grid.optimum(four, config, tokens=False, requests=short))
    after = seqs(
        [*four, (step.launch.max_num_seqs, step.launch.max_num_batched_tokens)], tokens=False
    )
    assert step.stderr_after < 0.3 * step.stderr
    assert after.s == pytest.approx(step.stderr_after, rel=0.1)
    assert abs(after.n - seqs(grid.launchable).n) < 2.5 * after.s
    for other in ((16, 8192), (512, 512), (512, 1024), (16, 4096), (64, 2048)):
        assert after.s < seqs([*four, other], tokens=False).s


def test_enough_where_no_launch_would_move_the_answer():
    step = next_launch(find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(1024, 256)))
    assert step.enough and step.launch is None and "Enough" in step.why
    assert (
        "standard error of C*"
        in run("llama-3-8b-2-layers", "--input-len", 1024, "--output-len", 256).stdout
    )


def test_what_is_unknown_comes_first_and_is_told_once():
    """The same launch as fit and recommend name."""
    answer = json.loads(
        run("qwen3.5-4b-a30", "--input-len", 1024, "--output-len", 256, "--json").stdout
    )
    first = model_of(["qwen3.5-4b-a30"]).next_launches[0]
    assert answer["next"]["max_num_seqs"] == first.max_num_seqs and not answer["enough"]


def test_an_assumed_k_is_worth_a_launch(tmp_path):
    """Without config.json and with one budget in group 1 hidden states stay open: up to 16 KiB."""
    (tmp_path / "launches.csv").write_text(
        "max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens,block_size\n"
        "128,512,3.6,472416,32\n512,512,2.5,327360,32\n16,2048,3.7,484416,32\n"
        "16,8192,2.85,373824,32\n"
    )
    answer = json.loads(run(tmp_path, "--input-len", 1024, "--output-len", 256, "--json").stdout)
    seqs, tokens = answer["next"]["max_num_seqs"], answer["next"]["max_num_batched_tokens"]
    assert tokens > 512 and 3094568 * seqs > 147456 * tokens  # another budget, the sampler's branch
    assert answer["max_num_seqs_stderr_after"] < answer["max_num_seqs_stderr"] / 3
    k_of_the_most = ufloat(0, 16384 / math.sqrt(3))
    moved = k_of_the_most.s * (6600 - 512) / (1280 * 8192 + 3094568)  # of C*, to first order
    assert answer["max_num_seqs_stderr"] == pytest.approx(moved, rel=0.15)


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
