"""The memory budget of a server before any launch."""

from .admission import RunningRequest
from .capacity import RISK, Capacity, capacity, launch_to_measure
from .estimates import chosen_experts, expected_slopes
from .gpus import GPUS, Gpu, gpu_named
from .memory_budget import equivalent_utilization, filled, tokens_per_percent
from .parameters import layer_parameters, one_table
from .quantized import quantization

__all__ = [
    "GPUS",
    "RISK",
    "Capacity",
    "Gpu",
    "RunningRequest",
    "capacity",
    "chosen_experts",
    "equivalent_utilization",
    "expected_slopes",
    "filled",
    "gpu_named",
    "launch_to_measure",
    "layer_parameters",
    "one_table",
    "quantization",
    "tokens_per_percent",
]
