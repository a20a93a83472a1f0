"""The JSON of every command: GiB where a name ends in _gib, else bytes, tokens; null: unknown."""

import math
import shlex
from collections.abc import Sequence
from typing import Any

from ..answer import Answer, Fit
from ..launch import Launch
from ..measure import Measured
from ..optimum import TradeOff
from ..pool import CONFIDENCE, Expected
from ..reading import COLUMNS
from ..units import GIB, InputError, nominal, stderr

PARAMETERS = ("k1", "a1", "k2", "a2", "k", "s")


def launch_json(launch: Launch) -> dict:
    """A launch under the column names of launches.csv."""
    return {
        name: column.to_json(getattr(launch, column.attribute)) for name, column in COLUMNS.items()
    }


def fit_json(model: Fit, at: Sequence[Expected] = ()) -> dict:
    """``fit --json``: the parameters in bytes, each launch with its branch and residual.

    at: the pools to expect at flags that were asked for.
    """
    return {
        **_values(model, PARAMETERS),
        "stderr": _spreads(model),
        "k_source": model.k_source,
        "s_source": model.s_source,
        "gpu_memory_utilization": model.gpu_memory_utilization,
        "kv_cache_dtype": model.kv_cache_dtype,
        "request_cost": _request_cost_json(model),
        "route": model.route,
        "chi2": model.chi2,
        "degrees_of_freedom": model.dof,
        "reasons": model.reasons,
        "launches": [
            {
                "source": fitted.launch.source,
                "max_num_seqs": fitted.launch.max_num_seqs,
                "max_num_batched_tokens": fitted.launch.max_num_batched_tokens,
                "branch": fitted.branch,
                "peak_activation_predicted_gib": in_gib(fitted.peak_activation),
                "kv_cache_predicted_gib": in_gib(fitted.kv_cache),
                "residual_gib": in_gib(fitted.residual),
            }
            for fitted in model.launches
        ],
        "at": [_expected_json(each, model) for each in at],
        "next_launches": [vars(launch) for launch in model.next_launches],
        "warnings": _names(model.notices),
    }


def _expected_json(found: Expected, model: Fit) -> dict:
    pool = found.kv_cache
    return {
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "gpu_memory_utilization": model.gpu_memory_utilization,
        "basis": found.basis,
        "kv_cache_gib": in_gib(pool),
        "kv_cache_gib_stderr": in_gib(found.kv_cache_stderr),
        "kv_cache_tokens": found.kv_cache_tokens,
        "kv_cache_before_graphs_gib": in_gib(pool and pool + found.graph_charge),
    }


def recommend_json(answer: Answer) -> dict:
    """``recommend --json``: the four-launch estimate, the refined point, the integers."""
    model, method, best = answer.model, answer.method, answer.recommended
    point = ("max_num_seqs", "max_num_batched_tokens")
    names = (*point, "k1", "k2", "a", "kv_bytes_per_token")
    return {
        "workload": vars(answer.workload),
        "method": None
        if method.reason
        else {**_values(method, names), "stderr": _errors(method, names)},
        "method_reason": method.reason,
        "refined": {
            **_values(answer, point),
            **_values(model, PARAMETERS),
            "stderr": {**_errors(answer, point), **_spreads(model)},
            "route": model.route,
            "k_source": model.k_source,
            "s_source": model.s_source,
        },
        "recommended": best
        and {
            "max_num_seqs": best.max_num_seqs,
            "max_num_batched_tokens": best.max_num_batched_tokens,
            "basis": best.basis,
            "kv_cache_gib": best.kv_cache / GIB,
            "kv_cache_cold_gib": in_gib(_cold(answer)),
            "kv_cache_tokens": best.kv_cache_tokens,
            "kv_cache_tokens_stderr": best.kv_cache_tokens_stderr,
            "concurrency": best.concurrency,
            "confidence": CONFIDENCE,
            "kv_cache_tokens_needed": best.needed_tokens,
        },
        "recommended_reason": answer.reason,
        "reasons": model.reasons,
        "default": answer.default and dict(zip((*point, "requests"), answer.default, strict=True)),
        "prices": [_price_json(price) for price in answer.prices],
        "next_launches": [vars(launch) for launch in model.next_launches],
        "warnings": _names(answer.notices),
        "explanations": [notice.text for notice in answer.notices],
    }


def _cold(answer: Answer) -> float | None:
    """The pool of the recommended flags at a cold start, bytes; None where it is not known."""
    takes, best = answer.model.cold_takes, answer.recommended
    return None if takes is None or best is None else best.kv_cache - takes


def recommended_flags(answer: Answer) -> dict[str, Any]:
    """The flags of the answer, and those of the launches it stands on, as vLLM names them.

    Raises InputError without an answer: a server would start on its defaults.
    """
    best = answer.recommended
    if best is None:
        raise InputError(f"no recommendation: {answer.reason}")
    flags = {
        "max-num-seqs": best.max_num_seqs,
        "max-num-batched-tokens": best.max_num_batched_tokens,
    }
    for name in (
        "gpu_memory_utilization",
        "max_model_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "kv_cache_dtype",
    ):
        values = {value for f in answer.model.launches if (value := getattr(f.launch, name))}
        if values and hasattr(answer.model, name):  # of several, the answer's
            values = {getattr(answer.model, name)}
        if len(values) == 1 and values.isdisjoint((1, "auto")):
            flags[name.replace("_", "-")] = values.pop()
    return flags


def recommend_yaml(answer: Answer) -> str:
    """A file for ``vllm serve --config``. Raises InputError without an answer."""
    flags = [f"{name}: {value}" for name, value in recommended_flags(answer).items()]
    said = [f"# {notice.name}: {' '.join(notice.text.split())}" for notice in answer.notices]
    return "\n".join([*said, "# To be added to the other flags of the launches.", *flags, ""])


def recommend_args(answer: Answer) -> str:
    """One line of flags for ``vllm serve``. Raises InputError without an answer."""
    flags = recommended_flags(answer).items()
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in flags)


def measured_json(found: Measured) -> dict:
    """``measure --json``: the launches that were made, the answer, and the check launch."""
    answer = found.optimum
    return {
        "launches": [launch_json(launch) for launch in found.launches],
        "recommend": recommend_json(answer) if isinstance(answer, Answer) else None,
        "verify": found.verification and found.verification.to_dict(),
    }


def in_gib(value: float | None) -> float | None:
    """GiB of bytes; None where they are not known."""
    return None if value is None or not math.isfinite(value) else value / GIB


def _request_cost_json(model: Fit) -> dict | None:
    cost = model.request_cost
    if cost is None:
        return None
    return {
        **{name: nominal(value) for name, value in cost.terms.items()},
        "stderr": {name: stderr(value) for name, value in cost.terms.items()},
        "lengths": list(cost.lengths),
        "source": cost.source,
    }


def _price_json(price: TradeOff) -> dict:
    return {
        "max_num_batched_tokens": price.max_num_batched_tokens,
        "kv_cache_gib": price.kv_cache / GIB,
        "kv_cache_tokens": price.kv_cache_tokens,
        "max_num_seqs": price.max_num_seqs,
    }


def _values(record, names) -> dict:
    return {
        name: None if (value := getattr(record, name)) is None else nominal(value) for name in names
    }


def _errors(record, names) -> dict:
    return {
        name: None if (value := getattr(record, name)) is None else stderr(value) for name in names
    }


def _spreads(model: Fit) -> dict:
    """Standard errors that cover every way to split the launches into branches."""
    return {name: stderr(model.spread(name)) for name in PARAMETERS}


def _names(notices) -> list[str]:
    return list(dict.fromkeys(notice.name for notice in notices))
