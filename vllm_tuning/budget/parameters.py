"""Parameters of a language model counted from its config.json, as one GPU holds them.

Matrices only: norms, biases and rotary tables are within 0.1 %. Vision towers are not counted.
"""

from ..kv_cache import ModelConfig, mamba2_shape
from ..law import heads_on_gpu

_PLAIN_MLP = (  # two matrices, the others three
    "opt phi falcon gpt2 gpt_neox bloom starcoder2 nemotron_h gpt_bigcode gptj mpt nemotron"
)


def attention_parameters(
    config: ModelConfig, kind: str = "full", tensor_parallel_size: int = 1
) -> int:
    """One layer: queries, keys, values and output of its heads, or the five of a latent."""
    hidden, heads, tp = (
        config.count("hidden_size"),
        config.count("num_attention_heads"),
        tensor_parallel_size,
    )
    if config.latent:
        rank, rope, nope = config.need("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        values, own = config.count("v_head_dim", nope), heads // tp
        query = config.optional("q_lora_rank")
        down = hidden * (rank + rope) + (hidden * query if query else 0)
        return (
            down
            + (query or hidden) * own * (nope + rope)
            + rank * own * (nope + values)
            + own * values * hidden
        )
    kv_heads, keys, values = config.heads_of(kind)
    queries = keys * (2 if config.get("attn_output_gate") or config.family == "qwen3_next" else 1)
    return hidden * (
        (queries + values) * heads // tp + (keys + values) * heads_on_gpu(kv_heads, tp)
    )


def recurrent_parameters(config: ModelConfig) -> int:
    """One layer of a gated delta net, Mamba 2 or Mamba 1: projections in and out."""
    hidden = config.count("hidden_size")
    if config.get("linear_num_value_heads"):
        keys, values, key_dim, value_dim = config.need(
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
        )
        return hidden * (2 * keys * key_dim + 3 * values * value_dim + 2 * values)
    if shape := mamba2_shape(config):
        heads, head, groups, size, _ = shape
        return hidden * (3 * heads * head + 2 * groups * size + heads)
    inner = config.count("mamba_expand") * hidden
    size, rank = config.count("mamba_d_state"), config.count("mamba_dt_rank", -(-hidden // 16))
    return 3 * hidden * inner + inner * (rank + 2 * size) + rank * inner


def mlp_widths(config: ModelConfig) -> list[tuple[int, int]]:
    """For each layer: inner width, summed over all its experts, and the router's outputs."""
    layers = config.count("num_hidden_layers")
    width = config.first("intermediate_size", "ffn_dim", "n_inner")
    width = width or 4 * config.count("hidden_size")
    experts = config.first("num_experts", "n_routed_experts", "num_local_experts")
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [(width, 0) if each in "-E" else (0, 0) for each in pattern]
    if not experts:
        shared = config.optional("shared_intermediate_size")
        return [(shared or width, 0)] * layers
    expert = config.optional("moe_intermediate_size") or width
    shared = (
        config.first("shared_expert_intermediate_size", "shared_intermediate_size")
        or expert * config.first("n_shared_experts")
        or (width if config.family in ("llama4", "gemma4") else 0)
    )
    dense = config.optional("intermediate_size_mlp") or width
    first = config.first("first_k_dense_replace")
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period")
    step = config.first(*steps) or 1
    offset = config.optional("expert_layer_offset", 0)
    offset = step - 1 if offset is None else offset
    only_dense, sparse = config.get("mlp_only_layers"), config.get("moe_layer_freq")
    only_dense = only_dense if isinstance(only_dense, list) else []
    if isinstance(sparse, list):
        only_dense = only_dense + [i for i, each in enumerate(sparse) if not each]
    return [
        (experts * expert + shared, experts)
        if i >= first and i % step == offset and i not in only_dense
        else (dense, 0)
        for i in range(layers)
    ]


def one_table(config: ModelConfig, tensor_parallel_size: int = 1) -> int:
    """Parameters of input embedding or output head, the vocabulary filled up to 64 entries."""
    rows = -(-config.count("vocab_size") // 64) * 64
    return rows * config.count("hidden_size") // tensor_parallel_size


def count_parameters(
    config: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> int:
    """Parameters on one GPU: heads, widths, experts and the vocabulary split over tensor parallel
    ranks, layers over pipeline stages (the first, with the embedding).

    >>> from vllm_tuning.reading import DATA
    >>> from vllm_tuning.kv_cache.model_config import read_config
    >>> round(count_parameters(read_config(DATA / "llama-3.1-70b-mi300x")) / 1e9, 1)
    70.6
    """
    split = tensor_parallel_size, pipeline_parallel_size
    return sum(layer_parameters(config, *split)) + table_parameters(config, *split)


def table_parameters(
    config: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> int:
    """Embedding and output head, one table where they are tied or in two pipeline stages."""
    tables = 1 if config.get("tie_word_embeddings") or pipeline_parallel_size > 1 else 2
    return tables * one_table(config, tensor_parallel_size)


def layer_parameters(
    config: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> tuple[int, int]:
    """Parameters of the experts, and of all else in the layers."""
    hidden, tp = config.count("hidden_size"), tensor_parallel_size
    matrices = 2 if config.family in _PLAIN_MLP.split() else 3
    experts = others = 0
    kinds, widths = config.layer_kinds(), mlp_widths(config)
    stage = -(-len(kinds) // pipeline_parallel_size)
    for kind, (width, router) in list(zip(kinds, widths, strict=True))[:stage]:
        if kind == "state":
            others += recurrent_parameters(config) // tp
        elif kind:
            others += attention_parameters(config, kind, tp)
        inner = matrices * hidden * width // tp
        experts, others = (experts + inner, others) if router else (experts, others + inner)
        others += hidden * router
    return experts, others
