"""One launch of a vLLM server as a record: bytes and tokens, None where the log does not say."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .releases import charges_graph_estimate, prints_tokens_by_concurrency
from .units import GIB

KNOBS = ("max_num_seqs", "max_num_batched_tokens")
UNBALANCED = 0.035 * GIB  # between a pool and what its parts leave, all rounded


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a vLLM server: its flags, and the figures it printed while starting.

    Memory in bytes, lengths in tokens; None where the log does not say. ``cuda_graph`` is what the
    graphs really took, ``cuda_graph_estimated`` what the profiler set aside for them.
    ``cold_start``: the compiler ran inside the profile (None: there was none, or the log does not
    say); ``model_runner``: V1 or V2. ``hybrid``: layers of several kinds share the pool;
    ``prefix_caching`` to ``decode_context_parallel_size``: the engine's mode, which no table holds;
    ``measured``: the pool was not set by hand; ``exact``: the device counted its memory to the
    byte. ``where`` is the file and line the record was read from.
    """

    source: str | None = None
    vllm_version: str | None = None
    model: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    total_memory: float | None = None
    gpu_memory_utilization: float | None = None
    model_weights: float | None = None
    non_torch: float | None = None
    peak_activation: float | None = None
    cuda_graph: float | None = None
    cuda_graph_estimated: float | None = None
    cuda_graph_charged: bool | None = None
    kv_cache: float | None = None
    kv_cache_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    max_concurrency: float | None = None
    kv_cache_dtype: str | None = None
    cold_start: bool | None = None
    model_runner: str | None = None
    status: str = "ok"
    error: str | None = None
    warnings: tuple[str, ...] = ()
    hybrid: bool = False
    prefix_caching: bool | None = field(default=None, compare=False)
    speculative_tokens: int | None = field(default=None, compare=False)
    decode_context_parallel_size: int | None = field(default=None, compare=False)
    measured: bool = True
    exact: bool = False
    where: str = field(default="launch", compare=False)

    @property
    def graph_charge(self) -> float:
        """G, bytes: the estimate for CUDA graphs where the release charges it to the pool, else 0.

        Where the record does not say, vLLM charges it from 0.20.2 on.
        """
        charged = self.cuda_graph_charged
        if charged is None:
            charged = charges_graph_estimate(self.vllm_version)
        return (self.cuda_graph_estimated or 0.0) if charged else 0.0

    @property
    def pool_tokens(self) -> int | None:
        """Tokens that the pool's whole blocks hold: KVS, where max_model_len is whole blocks.

        Else a release that prints int(concurrency * max_model_len) says less than they hold.

        >>> Launch(kv_cache_tokens=106747, max_model_len=32768, block_size=48).pool_tokens
        106800
        """
        tokens, length, block = self.kv_cache_tokens, self.max_model_len, self.block_size
        by_concurrency = prints_tokens_by_concurrency(self.vllm_version) is not False
        if tokens is None or not length or not block or not length % block or not by_concurrency:
            return tokens
        request = -(-length // block)
        return -(-tokens * request // length) * block

    @property
    def left_over(self) -> float | None:
        """A = TM*U - M - N - G, bytes: what weights and the driver leave over; None if unknown."""
        total, utilization = self.total_memory, self.gpu_memory_utilization
        weights, non_torch = self.model_weights, self.non_torch
        if total is None or utilization is None or weights is None or non_torch is None:
            return None
        return total * utilization - weights - non_torch - self.graph_charge


def column(launches: list[Launch], name: str) -> np.ndarray:
    """One figure of all launches, floats; NaN where a launch does not give it."""
    return np.array(
        [math.nan if (value := getattr(launch, name)) is None else value for launch in launches],
        dtype=float,
    )


def grouped(launches: list[Launch], name: str) -> dict:
    """The launches by what each says of ``name``, in their order."""
    groups: dict = {}
    for launch in launches:
        groups.setdefault(getattr(launch, name), []).append(launch)
    return groups


def first_known(launches: list[Launch], name: str, default=None):
    """What the first launch says that gives the figure ``name``; the default where none does."""
    return next(
        (value for launch in launches if (value := getattr(launch, name)) is not None), default
    )


def short_places(launches: list[Launch]) -> list[str]:
    """Where each launch was read: its line, and the file's name where they come from several."""
    parts = [launch.where.rpartition(":") for launch in launches]
    several = len({file for file, *_ in parts}) > 1
    return [f"{Path(file).name}:{line}" if several else line for file, _, line in parts]


def own_name(model: str) -> str:
    """``/models/Llama-3`` and ``meta-llama/Llama-3`` are one model."""
    return model.rstrip("/").rpartition("/")[2].lower()


def serve_flags(max_num_seqs: int, max_num_batched_tokens: int) -> str:
    """The two flags as ``vllm serve`` takes them."""
    return f"--max-num-seqs {max_num_seqs} --max-num-batched-tokens {max_num_batched_tokens}"
