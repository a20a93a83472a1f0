"""Bytes of quantized weights, from the ``quantization_config`` of a config.json."""

from ..kv_cache import MissingFigure, ModelConfig
from .parameters import count_parameters, layer_parameters, table_parameters

_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}
_BY_GROUP = ("awq", "gptq", "compressed-tensors")
_SCALE_BITS = 16  # one scale for each group of weights; 8 in mxfp4


def quantization(config: ModelConfig) -> dict | None:
    """The quantization_config, None where the weights are not quantized."""
    found = config.get("quantization_config") or config.get("compression_config")
    return found if isinstance(found, dict) and found else None


def weight_bytes(
    config: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> float:
    """Bytes of the matrices on one GPU: tables as they are, layers with their bits and scales.

    Of mxfp4 models only the experts are quantized. Raises MissingFigure for another scheme.
    """
    split = tensor_parallel_size, pipeline_parallel_size
    given = quantization(config)
    if not given:
        return config.element_bytes * count_parameters(config, *split)
    method, bits = _scheme(given, config.path)
    tables = config.element_bytes * table_parameters(config, *split)
    experts, others = layer_parameters(config, *split)
    return (
        tables
        + bits / 8 * experts
        + others * (config.element_bytes if method == "mxfp4" else bits / 8)
    )


def _scheme(given: dict, path: str) -> tuple[str, float]:
    """Name, and bits of a weight with its share of the scale."""
    method, groups = str(given.get("quant_method")).lower(), given.get("config_groups")
    weights = given
    if isinstance(groups, dict):
        kinds = [each.get("weights") for each in groups.values() if isinstance(each, dict)]
        weights = next((each for each in kinds if isinstance(each, dict)), {})
    bits = next(
        (weights[name] for name in ("num_bits", "bits", "w_bit") if weights.get(name)),
        _BITS.get(method),
    )
    if method not in (*_BITS, *_BY_GROUP) or bits not in (2, 3, 4, 8):
        raise MissingFigure(
            f"{path}: quantization_config {method[:40]!r} does not tell the "
            "size of the weights; give --weights GIB, of one GPU"
        )
    size = 32 if method == "mxfp4" else weights.get("group_size")
    scale = 8 if method == "mxfp4" else _SCALE_BITS
    return method, bits + (scale / size if isinstance(size, int) and size > 0 else 0)
