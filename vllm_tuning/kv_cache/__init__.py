"""From a config.json to the bytes that a token and a request keep on one GPU."""

from .layers import mamba2_shape
from .layout import CacheLayout, Group, Shape, cache_layout, read_shape
from .model_config import LARGEST_FIGURE, MissingFigure, ModelConfig, read_config
from .request_cost import cost_of_request, is_hybrid, shape_of

__all__ = [
    "LARGEST_FIGURE",
    "CacheLayout",
    "Group",
    "MissingFigure",
    "ModelConfig",
    "Shape",
    "cache_layout",
    "cost_of_request",
    "is_hybrid",
    "mamba2_shape",
    "read_config",
    "read_shape",
    "shape_of",
]
