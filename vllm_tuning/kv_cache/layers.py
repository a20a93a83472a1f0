"""What one layer keeps of a request: bytes of a token, or of a recurrent state, on one GPU."""

from dataclasses import dataclass

from ..law import heads_on_gpu
from ..units import InputError
from .model_config import ModelConfig

_DTYPE_BYTES = {
    "auto": None,
    **dict.fromkeys(("float32", "float"), 4),
    **dict.fromkeys(("float16", "half", "bfloat16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"), 1),
}
_MAMBA2 = (  # as Granite 4 and as Nemotron-H call them
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
)


def latent_bytes(kv_lora_rank: int, rope_dim: int, dtype_bytes: int) -> int:
    """One token in one layer of multi-head latent attention: (kv_lora_rank + rope) * bytes.

    >>> 27 * latent_bytes(512, 64, 2)  # DeepSeek-V2-Lite
    31104
    """
    return (kv_lora_rank + rope_dim) * dtype_bytes


def packed_latent_bytes(kv_lora_rank: int, rope_dim: int) -> int:
    """The same in the fp8 format of sparse latent attention: fp8, a float32 scale for each 128 of
    them, and the rope part in bf16.

    >>> packed_latent_bytes(512, 64), indexer_bytes(128)  # GLM 5, DeepSeek-V3.2
    (656, 132)
    """
    return kv_lora_rank + kv_lora_rank // 128 * 4 + 2 * rope_dim


def indexer_bytes(index_head_dim: int) -> int:
    """One token's key of the sparse indexer in one layer: fp8, a float32 scale for each 128."""
    return index_head_dim + index_head_dim // 128 * 4


@dataclass(frozen=True)
class Layer:
    """What one layer keeps on one GPU. ``token_bytes`` for each token, or ``state_bytes`` once."""

    kind: str
    index: int
    token_bytes: int = 0
    state_bytes: int = 0
    window: int = 0


def cache_layers(
    config: ModelConfig,
    tensor_parallel_size: int = 1,
    kv_cache_dtype: str | None = None,
    speculative_tokens: int = 0,
) -> list[Layer]:
    """The layers that keep a cache, in order. Raises InputError where the config lacks a figure.

    speculative_tokens: those that the model's own drafting head proposes; its layers are added.
    """
    kinds = config.layer_kinds()
    if speculative_tokens:
        kinds += ["full"] * (
            config.optional("num_nextn_predict_layers", 0)
            or config.optional("mtp_num_hidden_layers", 0)
            or 1
        )
    state = state_bytes(config, tensor_parallel_size, speculative_tokens) if "state" in kinds else 0
    window = {"window": config.window or 0, "chunk": config.optional("attention_chunk_size") or 0}
    return [
        Layer(kind, index, state_bytes=state)
        if kind == "state"
        else Layer(
            kind,
            index,
            _token_bytes(config, kind, index, tensor_parallel_size, kv_cache_dtype),
            window=window.get(kind, 0),
        )
        for index, kind in enumerate(kinds)
        if kind
    ]


def _token_bytes(config: ModelConfig, kind: str, index: int, tp: int, dtype: str | None) -> int:
    if dtype is not None and dtype not in _DTYPE_BYTES:
        raise InputError(f"kv_cache_dtype {dtype!r} is not known; one of {', '.join(_DTYPE_BYTES)}")
    element = _DTYPE_BYTES[dtype or "auto"] or config.element_bytes
    if config.latent:
        rank, rope = config.need("kv_lora_rank", "qk_rope_head_dim")
        if not config.get("index_topk"):
            return latent_bytes(rank, rope, element)
        latent = (
            packed_latent_bytes(rank, rope) if element == 1 else latent_bytes(rank, rope, element)
        )
        types = config.get("indexer_types")
        own = not (isinstance(types, list) and index < len(types)) or types[index] == "full"
        return latent + (indexer_bytes(config.count("index_head_dim")) if own else 0)
    heads, head_dim, value_dim = config.heads_of(kind)
    if heads % tp and tp % heads:
        raise InputError(
            f"{config.path}: {heads} KV heads cannot be split over tensor_parallel_size {tp}"
        )
    return heads_on_gpu(heads, tp) * (head_dim + value_dim) * element


def mamba2_shape(config: ModelConfig) -> list[int] | None:
    """Heads, their size, groups, state size and kernel of a Mamba 2 layer, None in other models."""
    return next((config.need(*names) for names in _MAMBA2 if config.get(names[0])), None)


def state_bytes(
    config: ModelConfig, tensor_parallel_size: int = 1, speculative_tokens: int = 0
) -> int:
    """Convolution and recurrent state of one layer for one request on one GPU.

    Gated delta nets (Qwen3-Next, 3.5), Mamba 2 (Granite 4, Nemotron-H), Mamba 1 (Jamba). Checked
    against the block sizes that vLLM printed: 528 tokens for Granite 4, 800 for a 27B Qwen3.5.
    """
    tp, element = tensor_parallel_size, config.element_bytes
    ssm = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    ssm_element = _DTYPE_BYTES.get(str(ssm)) or element
    if config.get("linear_num_value_heads"):
        keys, values, key_dim, value_dim, kernel = config.need(
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
        )
        width, state = 2 * keys * key_dim + values * value_dim, values * key_dim * value_dim
    elif shape := mamba2_shape(config):
        heads, head, groups, size, kernel = shape
        groups += tp - groups if groups % tp else 0
        width, state = heads * head + 2 * groups * size, heads * head * size
    else:
        expand, hidden, size, kernel = config.need(
            "mamba_expand", "hidden_size", "mamba_d_state", "mamba_d_conv"
        )
        width, state = expand * hidden, expand * hidden * size
    return (kernel - 1 + speculative_tokens) * (width // tp) * element + state // tp * ssm_element
