"""The memory baseline: configuration, capacity and figures under load, saved and compared."""

import json
import os
from importlib.metadata import version

from ..reading import HISTOGRAMS, read_json, write_whole
from ..units import InputError
from .rules import Verdict, count

_PARTS = ("versions", "configuration", "capacity", "load")


_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)


def baseline(verdict: Verdict) -> dict:
    """What to remember of a server under load: shares, tokens, seconds; None = not known."""
    series, server = verdict.series, verdict.server
    launch, pool, seconds = server.launch, server.pool(series), series.seconds
    duration = round(float(seconds[-1]), 3) if seconds is not None and len(seconds) > 1 else None
    counts = {name: count(series.increase(name)) for name in ("prompt_tokens", "generation_tokens")}
    seen = {name: series.histogram(name) for name in HISTOGRAMS}
    finished, steps = seen["output_length"], seen.pop("steps")
    return {
        "baseline_of": "vllm-tuning check",
        "versions": {"vllm_tuning": version("vllm-tuning"), "vllm": launch and launch.vllm_version},
        "configuration": {
            "model": series.scrapes[0].model or (launch and launch.model),
            "engines": len(series.engines),
            **{name: launch and getattr(launch, name) for name in _FLAGS},
            "gpu_memory_utilization": _share(series.label("gpu_memory_utilization")),
            "kv_cache_dtype": series.label("cache_dtype"),
            "block_size": pool and pool.block_size,
        },
        "capacity": {
            "num_gpu_blocks": pool and pool.blocks,
            "kv_cache_tokens": pool and pool.tokens,
        },
        "load": {
            **{
                name: value
                for name, value in verdict.to_dict().items()
                if name
                in ("healthy", "preemptions", "kv_cache_usage_peak", "waiting_peak", "running_peak")
            },
            "seconds": duration,
            **counts,
            "generation_tokens_per_second": counts["generation_tokens"] / duration
            if duration and counts["generation_tokens"]
            else None,
            "requests_finished": finished and count(finished.count),
            "steps": steps and count(steps.count),
            **{
                f"mean_{name}" + "_seconds" * (not name.endswith("length")): each and each.mean
                for name, each in seen.items()
            },
        },
    }


def save_baseline(path: str | os.PathLike, verdict: Verdict) -> None:
    """Write the baseline as JSON, whole or not at all."""
    write_whole(path, json.dumps(baseline(verdict), indent=2, allow_nan=False) + "\n")


def read_baseline(path: str | os.PathLike) -> dict:
    """What ``save_baseline`` wrote. Raises InputError."""
    expected = "a baseline that vllm-tuning check --save-baseline wrote"
    then = read_json(path, expected)
    for part in _PARTS:
        if not isinstance(then.get(part), dict):
            raise InputError(f"{path}: no {part}; expected {expected}")
        for name, value in then[part].items():
            if not (
                value is None
                or isinstance(value, str)
                or (isinstance(value, (int, float)) and abs(value) < 1e300)
            ):
                raise InputError(f"{path}: {name} is {str(value)[:40]}; expected {expected}")
    return then


def compare(then: dict, verdict: Verdict) -> list[dict]:
    """``name``, ``then`` and ``now`` of each figure that differs; None where it is not known."""
    now = baseline(verdict)
    return [
        {"name": name, "then": then[part].get(name), "now": value}
        for part in _PARTS
        for name, value in now[part].items()
        if then[part].get(name) != value
    ]


def _share(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
