"""vLLM's arithmetic of the pool, against what it printed for 36 models and by hand."""

import gzip
import json
import math
import re

import pytest
from conftest import ROOT, rows_of

from vllm_tuning.budget.capacity import capacity
from vllm_tuning.kv_cache.layout import cache_layout, read_shape
from vllm_tuning.kv_cache.model_config import config_of, read_config
from vllm_tuning.units import GIB, InputError

HERE = ROOT / "tests/data/kv-cache"
MODELS = json.loads((HERE / "models.json").read_text())
POOLS = rows_of(HERE / "pools.csv")
SHARED = ROOT.parent / "shared"


def config(values, folder):
    (folder / "config.json").write_text(json.dumps(values))
    return read_config(folder)


def layout(row, source):
    split = [int(row[f"{kind}_parallel_size"]) for kind in ("tensor", "pipeline")]
    return cache_layout(
        source,
        *split,
        row["kv_cache_dtype"],
        int(row["block_size"]),
        int(row["decode_context_parallel_size"]),
        int(row["speculative_tokens"]),
    )


def check(row, source):
    """Tokens within 0.1 % (0.2 % for several kinds of layers), concurrency within 0.2 %, each or
    half of the last printed digit and a block, where that is more."""
    cache, pool = layout(row, source), float(row["kv_cache_gib"]) * GIB
    blocks, length = cache.blocks(pool), int(row["max_model_len"])
    budget = int(row["max_num_batched_tokens"] or 2048)
    digits = 0.5 * 10.0 ** -len(row["kv_cache_gib"].partition(".")[2]) * GIB
    digits = min(digits, 0.005 * GIB)  # vLLM drops trailing zeros
    allowed = (digits / cache.block_bytes + 1) / blocks * (len(cache.groups) if cache.hybrid else 1)
    tokens = cache.printed_tokens(blocks, length, budget, row["vllm_version"])
    assert tokens == pytest.approx(
        int(row["kv_cache_tokens"]), rel=max(2e-3 if cache.hybrid else 1e-3, allowed)
    ), row
    held = float(row["max_concurrency"])
    assert cache.concurrency(blocks, length, budget) == pytest.approx(
        held, rel=max(2e-3, allowed + 0.005 / held)
    ), row


@pytest.mark.parametrize("row", POOLS, ids=lambda row: f"{row['log']}-{row['model']}")
def test_tokens_and_concurrency_of_printed_pools(row, tmp_path):
    check(row, config(MODELS[row["model"]]["config"], tmp_path))


def test_a_wrong_shape_is_noticed(tmp_path):
    """The tolerance has teeth: one layer more or less in the model breaks the agreement."""
    for name in ("Llama-3.1-8B", "gemma-3-12b", "granite-4.0-h-small", "DeepSeek-V2-Lite"):
        values = json.loads(json.dumps(MODELS[name]["config"]))
        inner = values.get("text_config", values)
        inner["num_hidden_layers"] += 1
        if "layer_types" in inner:
            inner["layer_types"].append("attention")
        row = next(row for row in POOLS if row["model"] == name)
        with pytest.raises(AssertionError):
            check(row, config(values, tmp_path))


# Logs of the shared collection with a printed pool that the test below leaves out, and why.
NOT_COVERED = {"laguna": "poolside/Laguna-S-2.1: no config at hand"}


@pytest.mark.skipif(not (SHARED / "logs").is_dir(), reason="needs ../shared/logs and configs")
def test_whole_logs_against_the_published_configs(tmp_path):
    """And as ``budget --launches`` takes them, which says so where the log lacks what it takes:
    a float32 cache, one that the checkpoint asks for."""
    from vllm_tuning.reading.log import read_log

    names = {alias.lower(): name for name, model in MODELS.items() for alias in model["names"]}
    carried = {row["log"]: row for row in POOLS}
    checked, left_out, told = 0, set(), []
    for path in sorted((SHARED / "logs").glob("*.log.gz")):
        for launch in read_log(path):
            if launch.kv_cache is None or not launch.kv_cache_tokens:
                continue  # failed before the pool, or a release that prints no GiB
            alias = (launch.model or "").rstrip("/").rpartition("/")[2].lower()
            if alias not in names:
                left_out.add(alias.partition("-")[0])
                continue
            model = MODELS[names[alias]]
            text = gzip.decompress(path.read_bytes()).decode(errors="replace")
            flags = carried.get(path.name[:4], {})
            row = {
                name: str(getattr(launch, name) or "")
                for name in (
                    "tensor_parallel_size",
                    "pipeline_parallel_size",
                    "max_num_batched_tokens",
                    "max_model_len",
                    "kv_cache_tokens",
                    "max_concurrency",
                    "vllm_version",
                )
            } | {
                "kv_cache_dtype": flags.get("kv_cache_dtype") or launch.kv_cache_dtype,
                "block_size": flags.get("block_size") or "16",
                "kv_cache_gib": f"{launch.kv_cache / GIB:.4g}",
                "decode_context_parallel_size": next(
                    iter(re.findall(r"decode_context_parallel_size=(\d+)", text)), "1"
                ),
                "speculative_tokens": next(
                    iter(re.findall(r"num_(?:spec|speculative)_tokens'?[=:] ?(\d+)", text)), "0"
                ),
            }
            shared = model["shared_config"]
            check(
                row,
                read_config(SHARED / "configs" / shared) if shared else config_of(model["config"]),
            )
            checked += 1
            (tmp_path / "config.json").write_text(json.dumps(model["config"]))
            found = capacity(tmp_path, launch=launch)
            if found.contradicted:
                told.append(path.name[:4])
            else:
                assert found.tokens(found.pool.value) == pytest.approx(
                    launch.kv_cache_tokens, rel=2e-3
                ), path
    assert left_out == NOT_COVERED.keys()
    assert told == ["L029", "L218"]
    assert checked == 116  # of 134 starts: 14 print no pool, 4 are of Laguna


# ---------------------------------------------------------------- by hand


def test_gemma_3_4b_by_hand(tmp_path):
    """34 layers, each sixth full: groups of 5, one full and six of windows; 1,024 tokens back."""
    cache = cache_layout(config(MODELS["gemma-3-4b"]["config"], tmp_path))
    assert [group.kind for group in cache.groups].count("window") == 6
    assert cache.block_bytes == 5 * 16 * 2 * 4 * 256 * 2
    assert cache.request_blocks(8192, 8192) == 512 + 6 * 513
    assert cache.request_blocks(131072, 2048) == 8192 + 6 * (math.ceil(3071 / 16) + 1)
    assert cache.fixed(2048) == 6 * 193 * cache.block_bytes
    assert cache.per_token == 5 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(
    "name, server, drafts, caching, printed",
    [  # as vLLM 0.28, 0.22 and 0.27.1 printed it: requests of max_model_len, tokens
        ("Qwen3.8-27B", (2, 1, "fp8"), 0, True, (208, 84 + 3 * 2, 131_072, 302_921)),
        ("Qwen3.6-35B-A3B", (1, 1, None), 3, True, (3163, 187 + 3 * (2 + 3), 200_000, 3_131_683)),
        ("Qwen3.8-27B", (1, 1, None), 0, False, (1050, 1004 + 3, 786_432, 820_013)),
    ],
)
def test_states_in_the_mode_of_the_engine(name, server, drafts, caching, printed):
    """Prefix caching keeps one more state of a group, each drafted token another."""
    cache = cache_layout(
        config_of(MODELS[name]["config"]),
        *server,
        speculative_tokens=drafts,
        prefix_caching=caching,
    )
    blocks, request, length, tokens = printed
    assert cache.request_blocks(length, 8192) == request
    assert cache.printed_tokens(blocks, length, 8192, "0.28.0") == tokens
    room = cache.block_size - length % cache.block_size  # what is drafted may need one block more
    assert cache.held_blocks(length, 8192) == request + (drafts > room % cache.block_size)


def test_jamba_by_hand(tmp_path):
    """Jamba v0.1: 4 of 32 layers attend; a state of 8192 x (3 + 16) bf16 elements in the others."""
    cache = cache_layout(
        config(
            {
                "model_type": "jamba",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "mamba_expand": 2,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "attn_layer_period": 8,
                "attn_layer_offset": 4,
            },
            tmp_path,
        )
    )
    state, token = 8192 * (3 + 16) * 2, 2 * 8 * 128 * 2
    assert cache.block_size == 16 * math.ceil(state / (16 * token)) == 80
    assert [group.kind for group in cache.groups] == ["state"] * 7 + ["full"]
    assert cache.block_bytes == 4 * 80 * token and cache.fixed(2048) == 7 * cache.block_bytes


def test_qwen3_next_by_hand(tmp_path):
    """48 layers, each fourth attends: 2 x 2 x 256 x 2 bytes a token; states in bf16."""
    cache = cache_layout(
        config(
            {
                "model_type": "qwen3_next",
                "hidden_size": 2048,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "full_attention_interval": 4,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
            },
            tmp_path,
        )
    )
    state = 3 * 8192 * 2 + 32 * 128 * 128 * 2
    assert cache.kv_bytes_per_token == 12 * 2048
    assert cache.block_size == 16 * math.ceil(state / (16 * 2048))
    assert [group.kind for group in cache.groups] == ["state"] * 3 + ["full"]


def test_all_layers_slide_in_the_first_mistral(tmp_path):
    cache = cache_layout(
        config(
            {
                "model_type": "mistral",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "sliding_window": 4096,
            },
            tmp_path,
        )
    )
    assert cache.hybrid and cache.per_token == 0 and cache.kv_bytes_per_token == 128 * 1024
    assert cache.request_blocks(32768, 2048) == math.ceil((4095 + 2048) / 16) + 1


def test_kv_heads_are_split_then_replicated_and_never_torn(tmp_path):
    source = config(MODELS["Llama-3.3-70B"]["config"], tmp_path)
    assert cache_layout(source, 4).kv_bytes_per_token == 80 * 1024
    assert cache_layout(source, 16).kv_bytes_per_token == 40 * 1024
    assert cache_layout(source, 8, 4).kv_bytes_per_token == 10 * 1024
    with pytest.raises(InputError, match="cannot be split over tensor_parallel_size 3"):
        cache_layout(source, 3)


def test_the_fullest_stage_decides(tmp_path):
    """30 layers over 4 stages: 7, 8, 8, 7."""
    source = config(MODELS["Llama-3.1-8B"]["config"] | {"num_hidden_layers": 30}, tmp_path)
    assert cache_layout(source, 1, 4).kv_bytes_per_token == 8 * 4096


def test_decode_context_parallel_ranks_share_a_sequence(tmp_path):
    cache = cache_layout(config(MODELS["GLM-5.1"]["config"], tmp_path), 8, 1, "fp8", 64, 8)
    assert cache.request_blocks(202752, 8192) == 202752 // 8 // 64
    assert cache.block_bytes == 78 * 64 * (656 + 132)


@pytest.mark.parametrize(
    "extra, named",
    [
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config"),
        ({"layer_types": ["retention"] * 32}, "retention"),
        ({"mamba_d_state": 16}, "layer_types"),
        ({"compress_ratios": [4]}, "compress_ratios"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": float("nan")}, "num_key_value_heads"),
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, "mamba_d_state"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types has 31 layers"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
    ],
)
def test_what_the_config_does_not_tell_is_named(extra, named, tmp_path):
    source = config(MODELS["Llama-3.1-8B"]["config"] | extra, tmp_path)
    with pytest.raises(InputError, match=named) as caught:
        cache_layout(source)
    assert "\n" not in str(caught.value)


def test_a_config_of_200_mb_is_refused_unread(tmp_path):
    with (tmp_path / "config.json").open("w") as file:
        file.truncate(200 * 10**6)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_config(tmp_path)


def test_a_byte_order_mark_is_no_matter(tmp_path):
    text = json.dumps(MODELS["Llama-3.1-8B"]["config"])
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")
    assert cache_layout(read_config(tmp_path)).kv_bytes_per_token == 131072


def test_a_tokenizers_file_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(InputError, match="a tokenizer's file"):
        read_shape(tmp_path)
