"""A Hugging Face config.json as vLLM reads it: checked figures, and what each layer keeps.

A language model inside a multimodal one is read from its ``text_config``. A figure that is missing
is an error that names it; what a family's own configuration class fills in is listed in DEFAULTS.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..reading import not_expected, read_text
from ..units import InputError

LARGEST_FIGURE = 10**8  # of a shape: tokens, heads, widths
LARGEST_DEPTH = 10_000  # layers; 126 in the largest models
LARGEST_CONFIG = 16 * 2**20  # bytes; the largest in use have some 100 kB
_NAMES = {  # one quantity, as the families call it
    "hidden_size": "hidden_size n_embd d_model",
    "num_hidden_layers": "num_hidden_layers n_layer n_layers num_layers",
    "num_attention_heads": "num_attention_heads n_head n_heads",
    "num_key_value_heads": "n_head_kv num_kv_heads num_key_value_heads multi_query_group_num "
    "num_attention_groups",
    "head_dim": "head_dim hidden_size_per_head attention_head_dim kv_channels",
    "vocab_size": "vocab_size padded_vocab_size",
    "max_position_embeddings": "max_position_embeddings n_positions max_seq_len seq_length "
    "max_sequence_length",
}

_TIED = ("gemma", "gemma2", "gemma3", "gemma4", "cohere", "cohere2", "opt", "falcon", "gpt2")
_STATES = {"full_attention_interval": 4, "linear_conv_kernel_dim": 4}

DEFAULTS: dict[
    str, dict
] = {  # of the configuration classes in transformers, where the files leave figures out
    "gemma3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window_pattern": 6,
    },
    "cohere2": {"sliding_window_pattern": 4},
    "qwen3_next": _STATES,
    "qwen3_5": _STATES,
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4},
    "llama4": {"no_rope_layer_interval": 4},
    "nemotron_h": {"mamba_ssm_dtype": "float32"},
}

# layers that keep something else than keys and values, latents, windows or one recurrent state
_UNKNOWN_KINDS = (
    "linear_attn_config compress_ratios attn_type_list block_configs mamba_d_ssm rwkv_version "
    "shared_transformer_config ssm_cfg is_encoder_decoder attn_layer_indices"
)

KINDS: dict[str, str | None] = {  # as the configs name them; None: keeps nothing
    **dict.fromkeys(("full_attention", "attention", "full", "*", "G"), "full"),
    **dict.fromkeys(("sliding_attention", "sliding", "L"), "window"),
    "chunked_attention": "chunk",
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "M"), "state"),
    **dict.fromkeys(("moe", "mlp", "-", "E")),
}

_ALTERNATING = ("gemma2", "gpt_oss")  # a window in every other layer, beginning with the first


class MissingFigure(InputError):
    """A figure that the config does not hold, or a kind of layer that is not known here."""


@dataclass(frozen=True)
class ModelConfig:
    """The figures of a config.json; ``path`` is for messages."""

    path: str
    values: dict

    def get(self, name, default=None):
        return self.values.get(name, default)

    @property
    def family(self) -> str:
        return str(self.get("model_type") or "").removesuffix("_text").removesuffix("_moe")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; InputError where it is none, MissingFigure without a default."""
        value = self.optional(name)
        if value is None:
            value = self.need(name)[0] if default is None else default
        return value

    def optional(self, name: str, least: int = 1) -> int | None:
        name = next(
            (each for each in _NAMES.get(name, "").split() if self.get(each) is not None), name
        )
        value = self.get(name)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not (least <= value <= LARGEST_FIGURE)
        ):
            raise InputError(
                f"{self.path}: {name} is {str(value)[:40]}; expected a whole number "
                f"from {least} to {LARGEST_FIGURE:,}"
            )
        return value

    def first(self, *names: str) -> int:
        """The first of several names that has a count above 0, else 0."""
        return next((found for name in names if (found := self.optional(name, 0))), 0)

    def need(self, *names: str) -> list[int]:
        """Several counts at once; the error names all that are missing."""
        found = {name: self.optional(name) for name in names}
        if missing := [name for name, value in found.items() if value is None]:
            raise MissingFigure(
                f"{self.path}: no {', '.join(missing)}, which a model of the "
                f"family {self.get('model_type') or 'unknown'!r} needs"
            )
        return [value for value in found.values() if value is not None]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of weights and activations as vLLM runs the model: it takes float32
        configs as float16 unless --dtype (``served_dtype``) says otherwise."""
        return 4 if self.get("served_dtype") in ("float32", "float") else 2

    @property
    def head_dim(self) -> int:
        if given := self.optional("head_dim"):
            return given
        hidden, heads = self.need("hidden_size", "num_attention_heads")
        if hidden < heads:
            raise InputError(
                f"{self.path}: hidden_size {hidden:,} is less than num_attention_heads {heads:,}"
            )
        return hidden // heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads: one with multi-query attention, as many as heads by default."""
        if self.get("multi_query") and not self.get("new_decoder_architecture"):
            return 1
        nested = self.get("attn_config")
        if isinstance(nested, dict) and nested.get("kv_n_heads"):
            return ModelConfig(self.path, nested).count("kv_n_heads")
        return self.optional("num_key_value_heads") or self.count("num_attention_heads")

    def heads_of(self, kind: str) -> tuple[int, int, int]:
        """KV heads of a layer, elements of a key and of a value of one head."""
        heads, head_dim = self.kv_heads, self.head_dim
        value_dim = self.optional("v_head_dim") or head_dim
        if kind == "window" and self.get("swa_num_key_value_heads"):
            heads, head_dim = self.need("swa_num_key_value_heads", "swa_head_dim")
            value_dim = self.optional("swa_v_head_dim") or head_dim
        if kind == "full" and self.get("global_head_dim"):
            head_dim = value_dim = self.count("global_head_dim")
            heads = self.optional("num_global_key_value_heads") or heads
        return heads, head_dim, value_dim

    @property
    def multimodal(self) -> bool:
        """Whether the language model is a part of another one."""
        return "outer" in self.values

    @property
    def latent(self) -> bool:
        """Multi-head latent attention: one latent a token and layer instead of keys and values."""
        return bool(self.get("kv_lora_rank")) and self.family != "minicpm3"

    def layer_kinds(self) -> list[str | None]:
        """What each layer keeps: full, window, chunk or state; None where it keeps nothing.

        Raises InputError for layers of another kind.
        """
        for name in _UNKNOWN_KINDS.split():
            if self.get(name):
                raise MissingFigure(
                    f"{self.path}: {name}: its layers keep a cache of a "
                    "kind that is not known here; launch once and read the log"
                )
        layers = self.count("num_hidden_layers")
        if layers > LARGEST_DEPTH:
            raise InputError(
                f"{self.path}: num_hidden_layers is {layers:,}; expected at most {LARGEST_DEPTH:,}"
            )
        named = self._named_kinds(layers)
        unknown = sorted({str(each)[:30] for each in named} - KINDS.keys())
        if unknown:
            raise MissingFigure(
                f"{self.path}: layers of the kind {', '.join(unknown)} are not "
                "known; expected full, sliding, chunked, linear attention or mamba"
            )
        own = layers - (self.optional("num_kv_shared_layers", 0) or 0)
        kept = [KINDS[each] if i < own else None for i, each in enumerate(named)]
        if not any(kept):
            raise InputError(f"{self.path}: no layer keeps a KV cache")
        if "window" in kept and not self.window:
            raise InputError(f"{self.path}: no sliding_window, but some layers slide")
        return kept

    def _named_kinds(self, layers: int) -> list[str]:
        for name in (
            "layer_types",
            "layers_block_type",
            "hybrid_override_pattern",
            "hybrid_layer_pattern",
        ):
            named = self.get(name)
            if not named or not isinstance(named, (list, str)):
                continue
            if name == "hybrid_layer_pattern":
                named = ["sliding" if each == 1 else "full" for each in named]
            if len(named) != layers:
                raise InputError(
                    f"{self.path}: {name} has {len(named):,} layers, but "
                    f"num_hidden_layers is {layers:,}"
                )
            return [str(each) for each in named]
        if self.family == "jamba":
            period, offset = self.count("attn_layer_period"), self.optional("attn_layer_offset", 0)
            return ["full" if i % period == offset else "mamba" for i in range(layers)]
        if self.family == "llama4" and self.get("attention_chunk_size"):
            interval, given = self.count("no_rope_layer_interval"), self.get("no_rope_layers")
            rope = (
                given
                if isinstance(given, list) and len(given) == layers
                else [(i + 1) % interval for i in range(layers)]
            )
            return ["chunked_attention" if rope[i] else "full" for i in range(layers)]
        if self.get("full_attention_interval") and self.get("linear_num_value_heads"):
            interval = self.count("full_attention_interval")
            return ["linear_attention" if (i + 1) % interval else "full" for i in range(layers)]
        if recurrent := [
            name
            for name in ("mamba_d_state", "ssm_state_size", "linear_num_value_heads")
            if self.get(name)
        ]:
            raise MissingFigure(
                f"{self.path}: no layer_types, though {recurrent[0]} tells of recurrent layers"
            )
        if not self.window:
            return ["full"] * layers
        pattern = self.get("sliding_window_pattern")
        if isinstance(pattern, str) and pattern:
            return [pattern[i % len(pattern)] for i in range(layers)]
        if pattern:
            interval = self.count("sliding_window_pattern")
            return ["sliding" if (i + 1) % interval else "full" for i in range(layers)]
        if self.family in _ALTERNATING:
            return ["full" if i % 2 else "sliding" for i in range(layers)]
        if self.get("use_sliding_window"):
            raise MissingFigure(
                f"{self.path}: use_sliding_window without layer_types: which "
                "layers slide is not told"
            )
        return ["sliding"] * layers

    @property
    def window(self) -> int | None:
        """Tokens of the sliding window, None where none is used."""
        if self.get("use_sliding_window") is False:
            return None
        return self.optional("sliding_window", 0) or None


def read_config(path: str | os.PathLike) -> ModelConfig:
    """The figures of a config.json, a folder of one, or its ``text_config``. Raises InputError."""
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    text = read_text(path, "the model's config.json", LARGEST_CONFIG)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({str(error)[:80]})"
        raise not_expected(path, text, reason, "the model's config.json") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; expected the model's config.json")
    return config_of(config, str(path))


def config_of(config: dict, path: str = "config.json") -> ModelConfig:
    """The figures of a config.json's content; ``path`` is for messages. Raises InputError."""
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(inner := config.get(name), dict):
            config = {**config, **inner, "outer": config}
            break
    given = {name: value for name, value in config.items() if value is not None}
    found = ModelConfig(path, config)
    for family in (found.family, str(config.get("model_type"))):
        tied = {"tie_word_embeddings": True} if family in _TIED else {}
        if tied or family in DEFAULTS:
            found = ModelConfig(path, tied | DEFAULTS.get(family, {}) | given)
    if found.optional("hidden_size") is None:
        hint = (
            ": a tokenizer's file"
            if {"tokenizer_class", "added_tokens_decoder", "vocab", "added_tokens"} & config.keys()
            else ""
        )
        raise InputError(
            f"{path}: no hidden_size{hint}; expected the config.json of a language model"
        )
    return found
