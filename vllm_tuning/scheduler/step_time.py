"""How long a step takes: given, or bounded from below by the two limits of a GPU.

A step reads the weights once and the keys and values of all running requests, and multiplies the
weights with each token that it schedules.
"""

import math
import os
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ..budget import Gpu, chosen_experts, layer_parameters, one_table
from ..kv_cache import MissingFigure, cache_layout, read_config
from ..units import InputError
from .config import Request
from .scheduler import Step


@dataclass(frozen=True)
class Roofline:
    """The least time of a step of a dense model on one GPU: bytes to move, operations to do.

    weight_bytes: read in every step (all but the input embeddings). parameters: multiplied with
    every token (those of the layers; the output head works once a request). kv_bytes_per_token: of
    one token of context. Activations and the operations of attention are left out.
    """

    gpu: Gpu
    weight_bytes: float
    parameters: float
    kv_bytes_per_token: float
    kind: ClassVar[str] = "lower bound of the step time"

    def read_seconds(self, kv_tokens=0):
        """(weights + kv_tokens * kappa) / memory bandwidth: bytes moved from HBM."""
        moved = self.weight_bytes + self.kv_bytes_per_token * np.asarray(kv_tokens)
        return moved / self.gpu.memory_bandwidth

    def compute_seconds(self, tokens):
        """2 * parameters * tokens / tensor rate: one multiplication and one addition each."""
        return 2 * self.parameters * np.asarray(tokens) / self.gpu.tensor_rate

    def seconds(self, tokens, kv_tokens=0):
        """The larger of the two: at best they overlap."""
        return np.maximum(self.read_seconds(kv_tokens), self.compute_seconds(tokens))

    def compute_bound_requests(self) -> float:
        """Decoding requests whose operations take as long as the weights to be read.

        >>> from vllm_tuning.budget.gpus import GPUS
        >>> llama = Roofline(GPUS["H100"], 2 * 7e9, 7e9, 0)
        >>> f"{llama.compute_bound_requests():.0f}"
        '295'
        """
        return float(self.read_seconds() / self.compute_seconds(1))

    def kv_bound_requests(self, context: float) -> float:
        """Requests of ``context`` tokens whose KV cache takes as long to read as the weights."""
        return self.weight_bytes / (self.kv_bytes_per_token * context)


def roofline_of(
    config: str | os.PathLike,
    gpu: Gpu,
    tensor_parallel_size: int = 1,
    kv_cache_dtype: str | None = None,
) -> Roofline:
    """The bound of a model from its config.json, on each of the GPUs that share its layers.

    Raises InputError, and MissingFigure where it is not known what a step reads.
    """
    model = read_config(config)
    unknown = (
        "quantized weights"
        if model.get("quantization_config")
        else "experts, of which a step reads those that are chosen"
        if chosen_experts(model)
        else ""
    )
    layout = cache_layout(model, tensor_parallel_size, 1, kv_cache_dtype)
    if unknown or layout.hybrid:
        raise MissingFigure(
            f"{model.path}: {unknown or 'layers that do not keep every token'}: "
            "no bound of the step time is known here"
        )
    layers = sum(layer_parameters(model, tensor_parallel_size))
    weights = (layers + one_table(model, tensor_parallel_size)) * model.element_bytes
    return Roofline(gpu, weights, layers, layout.kv_bytes_per_token)


@dataclass(frozen=True)
class GivenStepTime:
    """Every step takes ``step`` seconds, whatever is in it."""

    step: float
    kind: ClassVar[str] = "given"

    def __post_init__(self):
        if not 0 < self.step < float("inf"):
            raise InputError(f"step time {self.step:g} s must be above 0")

    def seconds(self, tokens, kv_tokens=0):
        return self.step + 0 * np.asarray(tokens)


class StepTime(Protocol):
    """What a step takes; ``kind`` says what the figure is."""

    @property
    def kind(self) -> str: ...

    def seconds(self, tokens, kv_tokens=0): ...


@dataclass(frozen=True)
class Times:
    """What a simulation comes to in time; seconds, of shape (requests,), NaN where undefined.

    duration: of all steps; one without work counts as a step of no tokens. finished: when each had
    its last token. ttft: from the start of
    the step of arrival to the end of that of the first token. tpot: mean time of a further token.
    throughput: generated tokens a second over all steps. kind: of the step time; under a bound
    throughput is the most and ttft, tpot, duration the least.
    """

    kind: str
    duration: float
    throughput: float
    ttft: np.ndarray
    tpot: np.ndarray
    finished: np.ndarray


def times_to_json(times: Times | None, reason: str | None = None) -> dict:
    """``times`` of simulate --json: null where there are none, as without requests."""
    return {
        "kind": times and times.kind,
        "relative_error": None,
        "duration_s": times and times.duration,
        "throughput_tokens_per_s": times.throughput if times and times.duration else None,
        "ttft_s": quantiles(times.ttft if times else ()),
        "tpot_s": quantiles(times.tpot if times else ()),
        "reason": reason,
    }


def quantiles(seconds) -> dict:
    """Median and 99th percentile of those that are known."""
    known = np.asarray(seconds, dtype=float)
    known = known[np.isfinite(known)]
    middle, high = np.percentile(known, (50, 99)).tolist() if len(known) else (None, None)
    return {"median": middle, "p99": high}


class Clock:
    """The time, step by step, and when each request arrived, had its first token and its last."""

    def __init__(self, step_time: StepTime):
        self.step_time, self.now = step_time, 0.0
        self.requests: list[list[float]] = []  # arrived, first token, last token, tokens put out

    def idle(self, steps: int) -> None:
        self.now += steps * float(self.step_time.seconds(0))

    def add_request(self, request: Request) -> None:
        self.requests.append([self.now, math.nan, math.nan, request.max_tokens])

    def add(self, step: Step) -> None:
        self.now += float(self.step_time.seconds(step.tokens, step.kv_tokens))
        for number in step.first_token:
            self.requests[number][1] = self.now
        for number in step.finished:
            self.requests[number][2] = self.now

    def times(self) -> Times:
        arrived, first, last, outputs = np.array(self.requests).reshape(-1, 4).T
        tpot = (last - first) / np.where(outputs > 1, outputs - 1, np.nan)
        throughput = float(outputs.sum() / self.now) if self.now else math.nan
        return Times(self.step_time.kind, self.now, throughput, first - arrived, tpot, last)
