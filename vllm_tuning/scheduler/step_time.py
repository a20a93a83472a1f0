"""How long a step takes: given, fitted to load runs, or bounded from below by a GPU's two limits.

A step reads the weights once and the keys and values of all running requests, and multiplies the
weights with each token that it schedules.
"""

import csv
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.stats import t as students_t
from uncertainties import UFloat, ufloat

from ..budget import Gpu, chosen_experts, layer_parameters, one_table
from ..kv_cache import MissingFigure, cache_layout, read_config
from ..units import InputError
from .trace import Trace

COEFFICIENTS = ("t0", "t_token", "t_kv")


RUN_COLUMNS = ("seconds_per_step", "tokens", "kv_tokens")


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

    Raises InputError, and MissingFigure where the config does not tell what a step reads.
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


@dataclass(frozen=True)
class StepTime:
    """t = t0 + t_token * tokens + t_kv * kv_tokens in seconds, from load runs; estimated.

    Each coefficient has its standard error, or is None where the runs do not tell it: its 95 %
    interval covers 0. relative_error: the standard error of the mean step of one more run, as a
    share of it.
    """

    t0: UFloat | None
    t_token: UFloat | None
    t_kv: UFloat | None
    relative_error: float
    runs: int
    kind: ClassVar[str] = "estimated"

    def seconds(self, tokens, kv_tokens=0):
        t0, t_token, t_kv = (
            getattr(self, name).n if getattr(self, name) else 0.0 for name in COEFFICIENTS
        )
        return t0 + t_token * np.asarray(tokens) + t_kv * np.asarray(kv_tokens)


def fit_step_time(seconds, tokens, kv_tokens) -> StepTime:
    """Least squares over load runs: the means of a step of each run, arrays of shape (runs,).

    Relative residuals, for a busy machine slows a whole run by a factor; their scatter sets the
    errors. Coefficients whose 95 % interval (Student's t) is not above 0 are left out together, and
    the others fitted again: two that rise together in all runs are both unknown. Raises InputError
    for fewer than four runs, or where nothing is left.
    """
    seconds, tokens, kv_tokens = (np.asarray(v, dtype=float) for v in (seconds, tokens, kv_tokens))
    runs = len(seconds)
    if runs < 4:
        raise InputError(
            f"{runs} load runs do not tell a step time and its error; make at least 4 "
            "with different flags"
        )
    columns = dict(zip(COEFFICIENTS, (1 / seconds, tokens / seconds, kv_tokens / seconds)))
    while columns:
        values, errors, scatter = _least_squares(np.column_stack(list(columns.values())))
        known = values > students_t.ppf(0.975, runs - len(columns)) * errors
        if known.all():
            found = dict(zip(columns, map(ufloat, values, errors)))
            return StepTime(
                *map(found.get, COEFFICIENTS), scatter * (1 + len(columns) / runs) ** 0.5, runs
            )
        columns = {name: column for (name, column), keep in zip(columns.items(), known) if keep}
    raise InputError("the load runs tell no coefficient of the step time: they scatter too much")


def _least_squares(design):
    """To make each row sum to 1: coefficients, standard errors, scatter of the residuals."""
    scale = np.abs(design).max(axis=0).clip(1e-300)
    inverse = np.linalg.pinv(design / scale, rcond=1e-9)
    if np.linalg.matrix_rank(design / scale, 1e-9) < design.shape[1]:  # two cannot be told apart
        keep = np.arange(design.shape[1]) == 0
        return np.where(keep, 1.0, 0.0), np.where(keep, 0.0, np.inf), 0.0
    found = inverse.sum(axis=1)
    residuals = 1 - design / scale @ found
    scatter = float(np.sqrt(residuals @ residuals / (len(design) - design.shape[1])))
    return found / scale, scatter * np.linalg.norm(inverse, axis=1) / scale, scatter


def read_load_runs(path: str | os.PathLike) -> np.ndarray:
    """A CSV of load runs as a record array: the columns of ``RUN_COLUMNS``. Raises InputError.

    seconds_per_step is measured; tokens and kv_tokens, means of a step, are those of a simulation
    of the run.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(line for line in file if line.strip() and line[0] != "#"))
        runs = np.array(
            [tuple(float(row[name]) for name in RUN_COLUMNS) for row in rows],
            dtype=[(name, float) for name in RUN_COLUMNS],
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise InputError(
            f"{path}: expected a CSV with a header and numbers under {', '.join(RUN_COLUMNS)}"
        ) from None
    if not len(runs):
        raise InputError(f"{path}: no run; expected a CSV with {', '.join(RUN_COLUMNS)}")
    if not all((np.isfinite(runs[name]) & (runs[name] > 0)).all() for name in RUN_COLUMNS):
        raise InputError(f"{path}: every {', '.join(RUN_COLUMNS)} must be above 0")
    return runs


@dataclass(frozen=True)
class Estimate:
    """What a simulation comes to in time; seconds, arrays of shape (requests,), NaN where undefined.

    duration: of all steps; one without work counts as a step of no tokens. ttft: from the start of
    the step of arrival to the end of that of the first token. tpot: mean time of a further token.
    throughput: generated tokens a second over all steps. kind: "given", "estimated", with
    relative_error, or a bound of the step time: then throughput is the most and ttft, tpot, duration
    the least.
    """

    kind: str
    relative_error: float | None
    duration: float
    throughput: float
    ttft: np.ndarray
    tpot: np.ndarray


def times_to_json(times: Estimate | None, reason: str | None = None) -> dict:
    """``times`` of simulate --json: null where there are none, as of a workload without requests."""
    return {
        "kind": times and times.kind,
        "relative_error": times and times.relative_error,
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


def estimate(trace: Trace, step_time: Roofline | StepTime | GivenStepTime) -> Estimate:
    """Throughput, TTFT and TPOT of a traced simulation."""
    table = trace.table()
    seconds = step_time.seconds(table["tokens"], table["kv_tokens"])
    ends = np.cumsum(seconds)
    arrived = np.array([request.at for request in trace.requests], dtype=int)
    first, last = (np.empty(len(arrived)) for _ in range(2))
    for times, (steps, requests) in ((first, trace.first_token.T), (last, trace.finished.T)):
        times[requests] = ends[steps]
    return estimate_of(
        step_time,
        float(seconds.sum()),
        (ends - seconds)[arrived],
        first,
        last,
        [request.max_tokens for request in trace.requests],
    )


def estimate_of(step_time, duration: float, arrived, first, last, outputs) -> Estimate:
    """The same from when each request arrived, had its first token and its last, seconds, and how
    many tokens it put out; of shape (requests,)."""
    arrived, first, last, outputs = (
        np.asarray(v, dtype=float) for v in (arrived, first, last, outputs)
    )
    tpot = (last - first) / np.where(outputs > 1, outputs - 1, np.nan)
    return Estimate(
        step_time.kind,
        getattr(step_time, "relative_error", None),
        duration,
        float(outputs.sum() / duration) if duration else np.nan,
        first - arrived,
        tpot,
    )
