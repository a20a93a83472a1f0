"""Results of ``vllm bench serve`` and ``vllm bench sweep serve``: throughput, TTFT, TPOT."""

import math
import os
from collections.abc import Iterable

from ..units import InputError
from .json_records import read_records

_EXPECTED = "what vllm bench serve --save-result writes"

_REQUIRED = ("completed", "request_throughput")

BENCH_COLUMNS = {
    "mns": "max_num_seqs",
    "mnbt": "max_num_batched_tokens",
    "requests/s sent": "request_rate",
    "at most at once": "max_concurrency",
    "completed": "completed",
    "requests/s": "request_throughput",
    "output tokens/s": "output_throughput",
    "TTFT, median (ms)": "median_ttft_ms",
    "TTFT, p99 (ms)": "p99_ttft_ms",
    "TPOT, median (ms)": "median_tpot_ms",
    "TPOT, p99 (ms)": "p99_tpot_ms",
}


def read_bench_results(paths: Iterable[str | os.PathLike]) -> list[dict]:
    """The results in JSON files, under the names of vLLM in ``BENCH_COLUMNS`` and ``file``.

    None where a file does not say: the two flags stand in results of a sweep only. request_rate: a
    second, inf for all at once. Raises InputError.
    """
    return [
        _result(record, str(path)) for path in paths for record in read_records(path, _EXPECTED)
    ]


def _result(record: dict, where: str) -> dict:
    result = {name: _number(record.get(name), name, where) for name in BENCH_COLUMNS.values()}
    for name in _REQUIRED:
        if result[name] is None:
            raise InputError(f"{where}: no {name}; expected {_EXPECTED}")
    return {"file": where, **result}


def _number(value, name: str, where: str) -> float | None:
    """A number of 0 or more; vLLM writes an infinite rate as a word, and NaN for what is none."""
    try:
        number = math.nan if value is None else float(value)
    except (ValueError, OverflowError, TypeError):
        number = -1.0
    if isinstance(value, bool) or number < 0 or (math.isinf(number) and name != "request_rate"):
        raise InputError(f"{where}: {name} is {str(value)[:40]}; expected a number of 0 or more")
    return None if math.isnan(number) else number
