import json

import pytest

from vllm_tuning.kv_cache.layout import read_shape
from vllm_tuning.law import kv_bytes_per_token
from vllm_tuning.units import GIB, InputError

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def test_worked_numbers_of_the_sources():
    assert kv_bytes_per_token(32, 8, 128, 2) == 128 * 1024  # Llama 3.1 8B
    assert kv_bytes_per_token(80, 8, 128, 2) == 320 * 1024  # Llama 3 70B
    assert kv_bytes_per_token(80, 8, 128, 2) * 128 * 1024 == 40 * GIB  # at 128k tokens
    assert kv_bytes_per_token(32, 8, 128, 1) == 64 * 1024  # fp8 KV


def test_the_pool_of_an_8b_model_on_a_79_gib_card():
    """79.1 GiB at 0.92, 15 GiB weights, 3 GiB overhead: 54.8 GiB, 449k tokens, 28k blocks."""
    pool = 79.1 * 0.92 - 15 - 3
    kappa = kv_bytes_per_token(32, 8, 128, 2)
    assert pool == pytest.approx(54.8, abs=0.03)
    tokens = 54.8 * GIB / kappa
    assert tokens == pytest.approx(449_000, abs=500) and tokens / 16 == pytest.approx(
        28_000, abs=100
    )
    assert tokens / 131_072 == pytest.approx(3.43, abs=0.01)
    assert tokens / 8192 == pytest.approx(54.8, abs=0.01)
    assert 0.01 * 79.1 * GIB / kappa == pytest.approx(6_500, abs=50)
    assert 0.03 * 79.1 * GIB / kappa == pytest.approx(19_000, abs=500)
    assert tokens / 2400 == pytest.approx(187, abs=0.5)


def test_split_over_gpus():
    assert kv_bytes_per_token(80, 8, 128, 2, 4, 2) == 2 * 40 * 2 * 128 * 2
    assert kv_bytes_per_token(80, 8, 128, 2, 16) == 2 * 80 * 1 * 128 * 2


def write(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_shape_of_a_config(tmp_path):
    write(tmp_path, LLAMA)
    shape = read_shape(tmp_path)
    assert (shape.hidden_state_bytes, shape.kv_bytes_per_token) == (8192, 131072)
    assert read_shape(tmp_path, kv_cache_dtype="fp8").kv_bytes_per_token == 65536


def test_a_model_inside_a_multimodal_config(tmp_path):
    write(tmp_path, {"model_type": "x", "text_config": LLAMA})
    assert read_shape(tmp_path).hidden_state_bytes == 8192


@pytest.mark.parametrize(
    "extra",
    [
        {"sliding_window": 4096},
        {"layer_types": ["linear_attention", "full_attention"] * 16},
        {"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 16},
    ],
)
def test_no_single_figure_a_token_where_layers_differ(tmp_path, extra):
    write(tmp_path, LLAMA | extra)
    shape = read_shape(tmp_path)
    assert shape.kv_bytes_per_token is None and shape.hybrid


def test_latent_attention_is_one_figure_a_token(tmp_path):
    """DeepSeek-V2-Lite: 27 layers x (512 + 64) x 2 bytes, the same on every rank."""
    write(
        tmp_path,
        LLAMA
        | {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 27,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
    )
    for ranks in (1, 4):
        shape = read_shape(tmp_path, ranks)
        assert shape.kv_bytes_per_token == 31104 and not shape.hybrid


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        {"hidden_size": "4096"},
        {"hidden_size": 0},
        {"hidden_size": 10**400},
    ],
)
def test_bad_configs_get_a_sentence(tmp_path, config):
    with pytest.raises(InputError, match=r"config\.json"):
        read_shape(write(tmp_path, config))


def test_missing_config(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_shape(tmp_path / "none.json")
