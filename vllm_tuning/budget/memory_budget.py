"""Where each gibibyte of a GPU goes: TM*U split into weights, non-torch, activation, graphs, pool.

From a launch where there is one, else estimated from the model's shapes with a 90 % band. The three
knobs on the pool: the ceiling, the bytes of what is kept, and how many requests are let in.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from ..kv_cache import CacheLayout, ModelConfig
from ..launch import Launch
from ..units import InputError
from .estimates import Part, Server, activation, cuda_graphs, non_torch, weights


@dataclass(frozen=True)
class Budget:
    """TM*U and its parts; the pool is the rest."""

    total_memory: float
    gpu_memory_utilization: float
    parts: tuple[Part, ...]
    pool: Part

    @property
    def requested(self) -> float:
        """TM*U, bytes."""
        return self.total_memory * self.gpu_memory_utilization

    @property
    def above_ceiling(self) -> float:
        """Bytes above the ceiling: for CUDA graphs that the pool was not charged, for other
        processes and for what grows while serving."""
        return self.total_memory - self.requested

    def at(self, utilization: float) -> "Budget":
        """The same with another ceiling: only the pool changes."""
        more = self.total_memory * (utilization - self.gpu_memory_utilization)
        return replace(
            self,
            gpu_memory_utilization=utilization,
            pool=replace(self.pool, value=self.pool.value + more),
        )

    def with_weights(self, factor: float) -> "Budget":
        """The same with so much smaller weights (0.5: 8 bits for 16): the pool gets the rest."""
        smaller = [
            replace(part, value=part.value * factor, spread=part.spread * factor)
            if part.name == "weights"
            else part
            for part in self.parts
        ]
        freed = sum(part.value for part in self.parts) - sum(part.value for part in smaller)
        return replace(
            self, parts=tuple(smaller), pool=replace(self.pool, value=self.pool.value + freed)
        )


def memory_budget(config: ModelConfig, server: Server, launch: Launch | None = None) -> Budget:
    """The budget of a server: measured where the launch prints a part, else given or estimated."""
    measured, graphs = launch or Launch(), cuda_graphs(server)
    charge: float | None = measured.graph_charge  # 0 too where the log lacks it
    none_taken = measured.cuda_graph == 0 or measured.cuda_graph_charged is False
    if launch is None or (not charge and graphs.value and not none_taken):
        charge = None
    parts = (
        _known("weights", measured.model_weights, server.weights) or weights(config, server),
        _known("non_torch", measured.non_torch) or non_torch(config, server),
        _known("activation", measured.peak_activation) or activation(config, server),
        _known("cuda_graphs", charge) or graphs,
    )
    left = filled(server.requested, {part.name: part.value for part in parts} | {"pool": None})
    spread = math.hypot(*(part.spread for part in parts))
    pool = _known("pool", measured.kv_cache) or Part("pool", left["pool"], spread=spread)
    return Budget(server.total_memory, server.gpu_memory_utilization, parts, pool)


def filled(requested: float, parts: dict[str, float | None]) -> dict[str, float]:
    """The parts of TM*U, bytes; the one that is not known (None) is what the others leave.

    >>> filled(72, {"weights": 15, "non-torch": 1, "activation": 2, "KV cache": None})["KV cache"]
    54
    """
    left = requested - sum(size for size in parts.values() if size is not None)
    return {name: left if size is None else size for name, size in parts.items()}


def _known(name: str, measured: float | None, given: float | None = None) -> Part | None:
    if measured is not None:
        return Part(name, measured, "measured")
    return None if given is None else Part(name, given, "given")


def equivalent_utilization(utilization: float, graphs: float, total_memory: float) -> float:
    """The ceiling that gives the pool of a release that does not charge CUDA graphs: U + G/TM.

    >>> round(equivalent_utilization(0.85, 0.1e9, 119.6e9), 4)
    0.8508
    """
    return utilization + graphs / total_memory


def tokens_per_percent(total_memory: float, cache: CacheLayout) -> float:
    """Tokens of a long request in one more per cent of utilization; inf where none costs."""
    return 0.01 * total_memory / cache.per_token if cache.per_token else math.inf


def indexed_weights(config: ModelConfig, gpus: int) -> float | None:
    """Bytes of the weights on one of ``gpus`` from the safetensors index beside the config."""
    path = Path(config.path).parent / "model.safetensors.index.json"
    if not path.is_file():
        return None
    try:
        size = json.loads(path.read_text(encoding="utf-8"))["metadata"]["total_size"]
        if not 0 < float(size) < 2**60:
            raise ValueError(size)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path}: no metadata.total_size; expected a safetensors index") from None
    return float(size) / gpus
