"""The memory budget: worked numbers of the sources, and pools of real GPUs without any launch."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT, rows_of

from vllm_tuning.budget.capacity import capacity
from vllm_tuning.budget.estimates import Server, weights
from vllm_tuning.budget.memory_budget import filled, memory_budget, tokens_per_percent
from vllm_tuning.budget.parameters import count_parameters
from vllm_tuning.budget.quantized import weight_bytes
from vllm_tuning.cli import main
from vllm_tuning.kv_cache.model_config import config_of
from vllm_tuning.launch import Launch
from vllm_tuning.units import GIB, InputError
from vllm_tuning.workload import Workload

HERE = ROOT / "tests/data/kv-cache"
MODELS = json.loads((HERE / "models.json").read_text())
LAUNCHES = rows_of(HERE / "budgets.csv")


def model(name, folder=None):
    if folder is None:
        return config_of(MODELS[name]["config"])
    (folder / "config.json").write_text(json.dumps(MODELS[name]["config"]))
    return folder / "config.json"


def server(row):
    given = float(row["model_weights_gib"]) * GIB if row["weights_given"] == "yes" else None
    return Server(
        total_memory=float(row["total_memory_gib"]) * GIB,
        gpu=row["device"],
        weights=given,
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        vllm_version=row["vllm_version"],
        **{
            name: int(row[name])
            for name in (
                "max_num_seqs",
                "max_num_batched_tokens",
                "tensor_parallel_size",
                "pipeline_parallel_size",
            )
        },
    )


def judged(rows):
    """Relative errors of the pool, whether the band holds it, and half-widths in GiB."""
    found = []
    for row in rows:
        pool = memory_budget(model(row["model"]), server(row)).pool
        real = float(row["kv_cache_gib"])
        found.append(
            (
                abs(pool.value / GIB / real - 1),
                pool.low / GIB <= real <= pool.high / GIB,
                (pool.high - pool.low) / 2 / GIB,
            )
        )
    return map(np.array, zip(*found, strict=True))


def test_llama_3_70b(tmp_path):
    """320 KiB a token, 40 GiB at 128k, 140 GB of weights, ten such users over 400 GB."""
    found = capacity(model("Llama-3.3-70B", tmp_path))
    assert found.cache.kv_bytes_per_token == 320 * 1024
    assert found.cache.per_token * 128 * 1024 == 40 * GIB
    assert 2 * count_parameters(found.config) == pytest.approx(140e9, rel=0.01)
    assert 10 * 40 * GIB > 400e9 and found.pool is None


def test_the_lesson_of_an_8b_model_on_an_h100(tmp_path):
    path = model("Llama-3.1-8B", tmp_path)
    printed = capacity(path, kv_cache=54.8 * GIB, max_model_len=131072)
    assert printed.tokens(54.8 * GIB) == pytest.approx(449_000, abs=500)
    assert printed.blocks == pytest.approx(28_000, abs=100)
    assert printed.max_concurrency == pytest.approx(3.42, abs=0.01)
    short = capacity(path, kv_cache=54.8 * GIB, max_model_len=8192)
    assert short.max_concurrency == pytest.approx(54.8, abs=0.01)
    chat = capacity(path, kv_cache=54.8 * GIB, lengths=(Workload(1000, 800),))
    assert chat.max_num_seqs(54.8 * GIB) == pytest.approx(250, abs=3)
    p95 = capacity(path, kv_cache=54.8 * GIB, lengths=(Workload(1400, 1000),) * 2)
    assert p95.max_num_seqs(54.8 * GIB) == pytest.approx(160, abs=3)
    fp8 = capacity(path, kv_cache=54.8 * GIB, kv_cache_dtype="fp8")
    assert fp8.cache.kv_bytes_per_token == 64 * 1024
    assert fp8.tokens(54.8 * GIB) == pytest.approx(900_000, rel=0.003)
    card = capacity(path, gpu_memory=79.1 * GIB, utilization=0.92)
    assert card.budget.requested / GIB == pytest.approx(72.8, abs=0.03)
    assert card.budget.above_ceiling / GIB == pytest.approx(0.08 * 79.1)
    assert tokens_per_percent(79.1 * GIB, card.cache) == pytest.approx(6_500, abs=50)
    more = card.budget.at(0.95).pool.value - card.pool.value
    assert more / card.cache.per_token == pytest.approx(19_000, rel=0.03)
    lighter = card.budget.with_weights(0.5)
    assert (lighter.pool.value - card.pool.value) / GIB == pytest.approx(7.5, abs=0.05)
    counted = next(part for part in card.budget.parts if part.name == "weights")
    assert counted.value / GIB == pytest.approx(15, abs=0.05) and counted.source == "estimated"
    assert card.pool.low < 54.8 * GIB < card.pool.high


def test_the_parts_and_the_pool_add_up_and_a_launch_is_measured():
    launch = Launch(
        total_memory=79.19 * GIB,
        gpu_memory_utilization=0.95,
        model_weights=14.99 * GIB,
        non_torch=0.25 * GIB,
        peak_activation=1.89 * GIB,
        kv_cache=58.11 * GIB,
        vllm_version="0.19.0",
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
    )
    flags = Server(
        total_memory=79.19 * GIB,
        gpu_memory_utilization=0.95,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        vllm_version="0.19.0",
    )
    measured = memory_budget(model("Llama-3.1-8B"), flags, launch)
    assert {part.source for part in measured.parts} == {measured.pool.source} == {"measured"}
    assert measured.requested - sum(part.value for part in measured.parts) == pytest.approx(
        measured.pool.value, abs=0.02 * GIB
    )
    estimated = memory_budget(model("Llama-3.1-8B"), flags)
    assert estimated.requested == pytest.approx(
        estimated.pool.value + sum(part.value for part in estimated.parts)
    )
    spread = math.hypot(*(part.spread for part in estimated.parts))
    assert estimated.pool.high - estimated.pool.low == pytest.approx(2 * 1.6449 * spread, rel=1e-4)


@pytest.mark.parametrize(
    "name, billions",
    [
        ("Llama-3.1-8B", 8.03),
        ("Llama-3.3-70B", 70.55),
        ("Mixtral-8x7B", 46.7),
        ("Qwen3-30B-A3B", 30.5),
        ("Qwen1.5-MoE-A2.7B", 14.3),
        ("DeepSeek-V2-Lite", 15.7),
        ("opt-6.7b", 6.66),
        ("phi-2", 2.78),
        ("gpt-oss-20b", 20.9),
        ("granite-4.0-h-small", 32.2),
        ("Qwen2.5-7B", 7.62),
        ("Llama-4-Scout", 107.8),
        ("gemma-3-27b", 27.0),
        ("Qwen3.8-27B", 26.9),
    ],
)
def test_parameters_as_published(name, billions):
    assert count_parameters(model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


_GROUPS = {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
SCHEMES = {
    "fp8": {"quant_method": "fp8"},
    "w8": {"quant_method": "compressed-tensors", **_GROUPS},
    "w4": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4"},
}


@pytest.mark.parametrize(
    "name, scheme, gpus, printed",
    [
        ("Llama-3.1-8B", "w8", 1, 8.49),
        ("Llama-3.1-8B", "w4", 1, 5.38),
        ("Qwen2.5-7B", "fp8", 1, 8.14),
        ("Llama-3.3-70B", "w8", 2, 33.88),
        ("gpt-oss-20b", "mxfp4", 1, 13.72),
    ],
)
def test_quantized_weights_against_what_logs_print(name, scheme, gpus, printed):
    config = config_of({**MODELS[name]["config"], "quantization_config": SCHEMES[scheme]})
    found = weights(
        config,
        Server(
            total_memory=79 * GIB,
            gpu_memory_utilization=0.9,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            tensor_parallel_size=gpus,
        ),
    )
    near = 0.02 if scheme != "mxfp4" else 0.07
    assert found.value / GIB == pytest.approx(printed, rel=near)
    assert abs(found.value / GIB - printed) < 1.645 * found.spread / GIB


def test_parameters_by_hand_where_layers_differ():
    """Keys of 24, values of 16, two KV heads and four in the window; the second layer has experts:
    64 x (96 + 48 + 32 + 64) + 3 x 64 x 32, 64 x (96 + 96 + 64 + 64) + 4 x 3 x 64 x 8 + 64 x 4."""
    shape = {
        "model_type": "mimo_v2_flash",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1],
        "intermediate_size": 32,
        "n_routed_experts": 4,
        "moe_intermediate_size": 8,
        "moe_layer_freq": [0, 1],
        "vocab_size": 128,
    }
    assert count_parameters(config_of(shape)) == 21_504 + 26_880 + 2 * 128 * 64


def test_four_bits_by_hand():
    """Two layers of 4 x 64 x 64 and 3 x 64 x 128: 81,920 weights at 4 + 16/128 bits, two tables."""
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "intermediate_size": 128,
        "quantization_config": SCHEMES["awq"],
    }
    assert weight_bytes(config_of(shape)) == 81_920 * 4.125 / 8 + 2 * 128 * 64 * 2


@pytest.mark.parametrize(
    "scheme",
    [
        {"quant_method": "bitnet"},
        {"bits": 4},
        {"quant_method": "awq"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
    ],
)
def test_a_scheme_that_does_not_tell_the_size(scheme, tmp_path):
    shape = {**MODELS["Llama-3.1-8B"]["config"], "quantization_config": scheme}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    done = run(tmp_path, "--gpu", "H100")
    assert done.exit_code == 1 and "--weights" in done.stderr and done.stderr.count("\n") == 1
    assert run(tmp_path).exit_code == 0  # what a request costs is told all the same
    assert run(tmp_path, "--gpu", "H100", "--weights", 5.4).exit_code == 0


def test_one_arithmetic_for_bars_and_budget():
    """A launch by hand: 80 x 0.9 - 15 - 1 - 2 = 54; the pool of an estimate and A - P agree."""
    launch = Launch(
        total_memory=80 * GIB,
        gpu_memory_utilization=0.9,
        model_weights=15 * GIB,
        non_torch=1 * GIB,
        peak_activation=2 * GIB,
        vllm_version="0.19.0",
    )
    flags = Server(
        total_memory=80 * GIB,
        gpu_memory_utilization=0.9,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        vllm_version="0.19.0",
    )
    pool = memory_budget(model("Llama-3.1-8B"), flags, launch).pool
    assert pool.value == pytest.approx(54 * GIB) and pool.source == "estimated"
    assert pool.value == pytest.approx(launch.left_over - launch.peak_activation)
    parts = {"weights and non-torch": None, "model run": 2 * GIB, "KV cache": 54 * GIB}
    assert filled(72 * GIB, parts)["weights and non-torch"] == 16 * GIB


def test_a_max_model_len_that_vllm_refuses(tmp_path):
    path = model("Qwen3.6-35B-A3B", tmp_path)
    found = capacity(path, kv_cache=1.5 * GIB, max_model_len=262144)
    assert found.max_concurrency < 1 and found.longest_request < 262144
    at = found.cache.request_blocks(found.longest_request, found.max_num_batched_tokens)
    assert (
        at
        <= found.blocks
        < found.cache.request_blocks(found.longest_request + 1, found.max_num_batched_tokens)
    )
    text = run(path, "--kv-cache-gib", 1.5, "--max-model-len", 262144).stdout
    assert "will not start" in text and f"{found.longest_request:,}" in text


def test_the_memory_of_cards_and_a_card_that_is_not_known(tmp_path):
    path = model("Llama-3.1-8B", tmp_path)
    for name in ("H100", "nvidia h100 80GB", "H100-80GB"):
        assert capacity(path, gpu=name).budget.total_memory == 79.19 * GIB
    assert capacity(path, gpu="A100-80GB").max_num_batched_tokens == 2048  # vLLM's default there
    with pytest.raises(InputError, match=r"A100-40GB, A100-80GB.*H200"):
        capacity(path, gpu="A100")


@pytest.mark.parametrize(
    "flags",
    [
        {"utilization": 0.0},
        {"utilization": math.nan},
        {"max_model_len": 0},
        {"max_num_seqs": 10**12},
        {"utilization": "much"},
        {"max_model_len": "8K"},
        {"max_model_len": 8192.5},
        {"vllm_version": "newest"},
    ],
)
def test_flags_from_a_notebook_are_checked(flags, tmp_path):
    with pytest.raises(InputError, match=next(iter(flags))):
        capacity(model("Llama-3.1-8B", tmp_path), gpu="H100", **flags)


def test_the_safetensors_index_beside_the_config(tmp_path):
    path = model("Llama-3.3-70B", tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 141_107_412_992}}))
    parts = capacity(path, gpu="H100", tensor_parallel_size=4).budget.parts
    assert parts[0].source == "given" and parts[0].value == 141_107_412_992 / 4
    index.write_text('{"metadata": {"total_size": NaN}}')
    done = CliRunner().invoke(main, ["budget", str(path), "--gpu", "H100"])
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and "total_size" in done.stderr


def run(*args):
    return CliRunner().invoke(main, ["budget", *map(str, args)])


def test_the_command_prints_json_and_a_narrow_table(tmp_path):
    path = model("gemma-3-27b", tmp_path)
    flags = [
        path,
        "--gpu",
        "h100",
        "--utilization",
        0.95,
        "--vllm-version",
        "0.19.0",
        "--max-model-len",
        8192,
        "--input-len",
        "1K",
        "--output-len",
        256,
    ]
    answer = json.loads(run(*flags, "--json").stdout)
    assert answer["kv_bytes_per_request"] == {"fixed": 6 * 577 * 1310720, "per_token": 81920}
    assert answer["pool_low_gib"] < 19.53 < answer["pool_high_gib"]  # as printed
    assert answer["pool_tokens"] == pytest.approx(36560, rel=0.03)
    assert answer["max_concurrency"] == pytest.approx(4.46, rel=0.03)
    assert answer["weights"]["low"] < 51.45 < answer["weights"]["high"]
    assert answer["max_num_seqs"] == (answer["pool_blocks"] - 1) // (80 + 6 * 81)
    text = run(*flags).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert f"--max-num-seqs {answer['max_num_seqs']}" in text and "estimated" in text


def test_without_a_gpu_only_costs(tmp_path):
    answer = json.loads(run(model("Qwen3.8-27B", tmp_path), "--json").stdout)
    assert answer["kv_bytes_per_token"] == 65536 and answer["pool_gib"] is None
    assert answer["max_num_seqs"] is None and answer["weights"] is None
    assert "costs only" in run(model("Qwen3.8-27B", tmp_path)).stdout


def test_a_pool_that_nothing_is_left_for(tmp_path):
    done = run(
        model("Llama-3.3-70B", tmp_path),
        "--gpu",
        "A100-40GB",
        "--input-len",
        10,
        "--output-len",
        10,
    )
    assert done.exit_code == 0 and "Nothing" in done.stdout
    answer = json.loads(run(model("Llama-3.3-70B", tmp_path), "--gpu", "H100", "--json").stdout)
    assert answer["pool_gib"] < 0 and answer["pool_tokens"] == 0


def test_a_log_in_place_of_estimates(tmp_path):
    (tmp_path / "launches.csv").write_text(
        "vllm_version,total_memory_gib,gpu_memory_utilization,model_weights_gib,non_torch_gib,"
        "peak_activation_gib,kv_cache_gib,max_num_seqs,max_num_batched_tokens\n"
        "0.19.0,79.19,0.95,14.99,0.25,1.89,58.11,1024,8192\n"
    )
    answer = json.loads(
        run(
            model("Llama-3.1-8B", tmp_path), "--launches", tmp_path / "launches.csv", "--json"
        ).stdout
    )
    assert answer["pool_gib"] == pytest.approx(58.11) and answer["pool_source"] == "measured"
    assert answer["pool_tokens"] == pytest.approx(476_000, rel=2e-4)


TWO_GPUS = Launch(  # as a log of Llama 3.3 70B in fp8 on two H100 prints it
    vllm_version="0.19.0",
    tensor_parallel_size=2,
    pipeline_parallel_size=1,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    max_model_len=8192,
    total_memory=79.19 * GIB,
    gpu_memory_utilization=0.95,
    model_weights=33.88 * GIB,
    non_torch=2.1 * GIB,
    peak_activation=1.96 * GIB,
    kv_cache=37.28 * GIB,
    kv_cache_tokens=244304,
    max_concurrency=29.82,
    kv_cache_dtype="auto",
)


def test_the_flags_of_a_launch_are_taken(tmp_path):
    path = model("Llama-3.3-70B", tmp_path)
    found = capacity(path, launch=TWO_GPUS)
    assert found.tokens(found.pool.value) == pytest.approx(244304, rel=2e-4)
    assert found.max_concurrency == pytest.approx(29.82, abs=0.01) and not found.contradicted
    with pytest.raises(InputError, match="tensor_parallel_size is 4, but 2 in the launch"):
        capacity(path, launch=TWO_GPUS, tensor_parallel_size=4)


def test_figures_that_other_flags_move_are_not_taken(tmp_path):
    """79.19 x 0.9 - 33.88 - 2.1 - 1.96 = 33.33; another budget moves the peak too."""
    path = model("Llama-3.3-70B", tmp_path)
    lower = capacity(path, launch=TWO_GPUS, utilization=0.9).budget
    assert lower.pool.value / GIB == pytest.approx(33.331) and lower.pool.source == "estimated"
    assert [part.source for part in lower.parts] == ["measured"] * 4
    for flags in ({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, {"vllm_version": "0.16.0"}):
        other = capacity(path, launch=TWO_GPUS, **flags).budget
        assert [part.source for part in other.parts[:3]] == ["measured", "measured", "estimated"]
        assert other.pool.source == "estimated" and other.pool.spread
    newer = capacity(path, launch=TWO_GPUS, vllm_version="0.33.0").budget.parts[3]
    assert newer.source == "estimated" and newer.value > 0  # not printed, but charged from 0.20.2
    printed = replace(TWO_GPUS, cuda_graph_estimated=1.82 * GIB, cuda_graph_charged=False)
    for version, charge in ((None, 0), ("0.33.0", 1.82)):
        graphs = capacity(path, launch=printed, vllm_version=version).budget.parts[3]
        assert (graphs.source, graphs.value) == ("measured", charge * GIB)
    given = capacity(path, launch=TWO_GPUS, weights=30 * GIB).budget
    assert given.parts[0].source == "given" and given.pool.value / GIB == pytest.approx(
        75.2305 - 30 - 2.1 - 1.96
    )
    fp8 = capacity(path, launch=TWO_GPUS, kv_cache_dtype="fp8")  # twice the tokens, the same GiB
    assert fp8.pool.source == "measured" and not fp8.contradicted
    assert fp8.tokens(fp8.pool.value) == pytest.approx(2 * 244304, rel=2e-4)


def test_a_launch_that_does_not_print_the_cards_memory(tmp_path):
    launch = Launch(kv_cache=54.8 * GIB, kv_cache_tokens=449_000, max_model_len=131072)
    found = capacity(model("Llama-3.1-8B", tmp_path), launch=launch)
    assert found.budget is None and found.pool.source == "measured"
    assert found.tokens(found.pool.value) == pytest.approx(449_000, rel=1e-3)


@pytest.mark.parametrize(
    "name, flags", [("Qwen2.5-7B", {}), ("Llama-3.3-70B", {"decode_context_parallel_size": 2})]
)
def test_a_launch_of_another_model_is_told(name, flags, tmp_path):
    assert capacity(model(name, tmp_path), launch=TWO_GPUS, **flags).contradicted
    (tmp_path / "launches.csv").write_text(
        "kv_cache_gib,kv_cache_tokens,tensor_parallel_size\n37.28,244304,2\n"
    )
    done = run(
        model(name, tmp_path),
        "--launches",
        tmp_path / "launches.csv",
        *(f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()),
    )
    assert "The launch printed 244,304 tokens" in done.stdout


def test_an_fp8_cache_of_a_hybrid_model(tmp_path):
    """Its blocks are those of the states, as large as before, with twice the tokens in them."""
    text = run(model("Qwen3.8-27B", tmp_path), "--gpu", "H100", "--max-model-len", 262144).stdout
    tokens = [
        int(line.split(" tokens")[0].split()[-1].replace(",", ""))
        for line in text.splitlines()
        if " tokens, " in line or "fp8" in line
    ]
    assert len(tokens) == 2 and tokens[1] == pytest.approx(2 * tokens[0], rel=0.03)


@pytest.mark.parametrize(
    "args",
    [
        ["--utilization", "nan"],
        ["--utilization", "1.5"],
        ["--gpu", "H7"],
        ["--gpu-memory", "nan"],
        ["--gpu-memory", "-1"],
        ["--input-len", "5"],
        ["--tensor-parallel-size", "0"],
        ["--vllm-version", "newest"],
    ],
)
def test_bad_usage_is_2(args, tmp_path):
    assert run(model("Llama-3.1-8B", tmp_path), *args).exit_code == 2


@pytest.mark.parametrize(
    "args, named",
    [
        (["--kv-cache-dtype", "int3"], "int3"),
        (["--tensor-parallel-size", "3"], "KV heads"),
        (["--pipeline-parallel-size", "99"], "pipeline stages"),
        (
            ["--input-len", "1000000", "--output-len", "1", "--max-model-len", "8192"],
            "max_model_len",
        ),
        (["--tensor-parallel-size", "64"], "attention heads"),
        (["--decode-context-parallel-size", "2"], "decode_context_parallel_size"),
        (["--max-num-seqs", "1024", "--max-num-batched-tokens", "512"], "max_num_seqs"),
        (["--lengths", "nowhere.csv"], "nowhere.csv"),
        (["--launches", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_is_one_line_and_1(args, named, tmp_path):
    done = run(model("Llama-3.1-8B", tmp_path), *args)
    assert done.exit_code == 1 and named in done.stderr and done.stderr.count("\n") == 1


def test_an_eager_launch_has_no_graphs():
    """Its parts already sum to the 6.00 GiB of a 10 GiB card at 0.6."""
    data = ROOT / "data/llama-3-8b-2-layers"
    done = CliRunner().invoke(main, ["budget", str(data), "--launches", str(data), "--json"])
    graphs = json.loads(done.stdout)["cuda_graphs"]
    assert (graphs["gib"], graphs["high"], graphs["source"]) == (0, 0, "measured")


def test_cautions_stand_in_the_json(tmp_path):
    """A band that was seen to hold on H100 and A100 up to 0.19 is assumed elsewhere."""
    path = model("Llama-3.1-8B", tmp_path)
    old, new, other = (
        json.loads(run(path, "--gpu", *gpu, "--max-model-len", 65536, "--json").stdout)
        for gpu in (("H100", "--vllm-version", "0.19.0"), ("H100",), ("NVIDIA L4",))
    )
    assert old["warnings"] == [] and new["warnings"] == ["band_is_assumed"]
    assert other["warnings"] == ["max_model_len_does_not_fit", "band_is_assumed"]
    assert new["pool_high_gib"] - new["pool_low_gib"] > old["pool_high_gib"] - old["pool_low_gib"]


def test_float32_doubles_weights_hidden_states_and_cache(tmp_path):
    path = model("Llama-3.1-8B", tmp_path)
    two, four = (capacity(path, gpu="H100", dtype=dtype) for dtype in ("half", "float32"))
    rest = 0.037 * GIB
    weights = [each.budget.parts[0].value - rest for each in (two, four)]
    assert weights[1] == pytest.approx(2 * weights[0])
    assert four.cache.kv_bytes_per_token == 2 * 131072
    with pytest.raises(InputError, match="dtype is 'int4'; expected one of auto, half"):
        capacity(path, dtype="int4")


def test_the_second_runner_keeps_a_state_of_each_request(tmp_path):
    """Qwen3 8B, 0.27: 626,736 bytes a request in N, 544 tokens of 147,456 bytes for 128 of them."""
    path, pools = model("Qwen3-8B", tmp_path), []
    for seqs in (128, 256):
        found = capacity(path, gpu="RTX 4090", vllm_version="0.27.1", max_num_seqs=seqs)
        parts = {part.name: part.value for part in found.budget.parts}
        pools.append((parts["non_torch"], parts["activation"]))
    assert (pools[1][0] - pools[0][0]) / 147456 == pytest.approx(544.04, abs=0.01)
    first = capacity(path, gpu="RTX 4090", vllm_version="0.21.0", max_num_seqs=256)
    peak = {part.name: part.value for part in first.budget.parts}["activation"]
    assert peak == pytest.approx(256 * 14 * 151936 + 2048 * 8192)  # V1; V2 takes a seventh
    assert pools[1][1] < peak / 2
