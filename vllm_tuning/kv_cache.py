"""What config.json tells: bytes of a hidden state (k) and of one token's KV cache (kappa)."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from .units import LARGEST_COUNT, InputError

_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """What the memory model needs of a model's shape; bytes, None if unknown.

    hybrid: layers of several kinds, so that a request does not cost its length times kappa.
    """

    hidden_state_bytes: int
    kv_bytes_per_token: int | None
    hybrid: bool = False


def hidden_state_bytes(hidden_size: int, dtype_bytes: int) -> int:
    """k = hidden size x bytes of an element: one token's hidden state, kept while sampling."""
    return hidden_size * dtype_bytes


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype_bytes: int,
                       tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> int:
    """kappa = 2 * layers * kv_heads * head_dim * bytes on one GPU: keys and values of a token.

    Heads are split over tensor parallel ranks (at least one each), layers over pipeline stages.

    >>> kv_bytes_per_token(32, 8, 128, 2) // 1024, kv_bytes_per_token(80, 8, 128, 2) // 1024
    (128, 320)
    """
    heads = max(1, kv_heads // tensor_parallel_size)
    stage = -(-layers // pipeline_parallel_size)
    return 2 * stage * heads * head_dim * dtype_bytes


def read_shape(path: str | os.PathLike, tensor_parallel_size: int = 1,
               pipeline_parallel_size: int = 1, kv_cache_dtype: str | None = None) -> Shape:
    """The shape in a Hugging Face config.json (a file or a folder of one).

    kappa is None for models whose layers are not all plain attention (sliding window, hybrid,
    multi-head latent): their cost is not one figure a token. Raises InputError.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); expected the model's config.json") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; expected the model's config.json")
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config

    def count(name, default=None):
        value = config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not (
                0 < value <= LARGEST_COUNT):
            raise InputError(f"{path}: {name} is {str(value)[:40]}; expected a whole number above 0")
        return value

    hidden = count("hidden_size")
    if hidden is None:
        raise InputError(f"{path}: no hidden_size; expected the config.json of a language model")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch.")
    element = _DTYPE_BYTES.get(dtype, 2)
    layers, heads = count("num_hidden_layers"), count("num_attention_heads")
    kappa = None
    hybrid = config.get("use_sliding_window") is not False and any(config.get(name) for name in (
        "sliding_window", "layer_types", "full_attention_interval", "hybrid_override_pattern",
        "attention_chunk_size", "mamba_d_state", "sliding_window_pattern", "linear_num_value_heads"))
    if layers and heads and not hybrid and not config.get("kv_lora_rank"):
        kappa = kv_bytes_per_token(
            layers, count("num_key_value_heads", heads), count("head_dim", hidden // heads),
            1 if (kv_cache_dtype or "").startswith("fp8") else element,
            tensor_parallel_size, pipeline_parallel_size)
    return Shape(hidden_state_bytes(hidden, element), kappa, hybrid)
