"""Results of ``vllm bench serve`` and ``vllm bench sweep serve``: throughput, TTFT, TPOT."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields

from ..units import InputError

_NAMES = {"completed": "completed", "requests_per_second": "request_throughput",
          "output_tokens_per_second": "output_throughput", "median_ttft_ms": "median_ttft_ms",
          "p99_ttft_ms": "p99_ttft_ms", "median_tpot_ms": "median_tpot_ms",
          "p99_tpot_ms": "p99_tpot_ms", "max_num_seqs": "max_num_seqs",
          "max_num_batched_tokens": "max_num_batched_tokens", "request_rate": "request_rate",
          "max_concurrency": "max_concurrency"}


@dataclass(frozen=True)
class BenchResult:
    """One benchmark as vLLM measured it; None where the file does not say.

    The two flags stand in results of a sweep only. request_rate: a second, inf for all at once.
    """

    where: str
    completed: float
    requests_per_second: float
    output_tokens_per_second: float | None = None
    median_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    median_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    request_rate: float | None = None
    max_concurrency: float | None = None


def read_bench_results(paths: Iterable[str | os.PathLike]) -> list[BenchResult]:
    """The results in JSON files: one, a list of them, or one a line. Raises InputError."""
    return [_result(record, str(path)) for path in paths for record in _records(path)]


def _records(path) -> list:
    expected = "what vllm bench serve --save-result writes"
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(2**28)
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON; expected {expected}") from None
    records = found if isinstance(found, list) else [found]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path}: no result; expected {expected}")
    return records


def _result(record: dict, where: str) -> BenchResult:
    values = {name: _number(record.get(key), key, where) for name, key in _NAMES.items()}
    for field in fields(BenchResult)[1:3]:
        if values[field.name] is None:
            raise InputError(f"{where}: no {_NAMES[field.name]}; expected what vllm bench serve "
                             "--save-result writes")
    return BenchResult(where, **values)


def _number(value, key: str, where: str) -> float | None:
    """A number of 0 or more; vLLM writes an infinite rate as a word."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = math.nan
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or (
            math.isinf(value) and key != "request_rate"):
        raise InputError(f"{where}: {key} is {str(value)[:40]}; expected a number of 0 or more")
    return value
