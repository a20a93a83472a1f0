"""Load runs of one server: how many requests ran at once, and how many tokens came out a second.

Results of ``vllm bench serve``, GuideLLM and AIPerf, scrapes of /metrics during one run, or a CSV
with the columns ``running`` and ``output_tokens_per_s``. Where a tool does not count the requests
that ran, Little's law does: requests a second times the seconds of one.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..units import InputError
from .files import read_text
from .json_records import records_of
from .metrics import parse_scrapes
from .scrape_series import ScrapeSeries

_EXPECTED = (
    "a result of vllm bench serve, GuideLLM or AIPerf, scrapes of /metrics, or a CSV with the "
    "columns running, output_tokens_per_s"
)
PREEMPTED = 0.01  # of the requests finished, from which on a run tells nothing


@dataclass(frozen=True)
class LoadRun:
    """Requests running at once (mean) and output tokens a second of one run; ``where``: its file.

    ``input_len``, ``output_len``: mean tokens of a request; ``model``; None where not known.
    """

    running: float
    output_tokens_per_s: float
    where: str = "run"
    model: str | None = None
    input_len: float | None = None
    output_len: float | None = None

    def __post_init__(self):
        for name in ("running", "output_tokens_per_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{self.where}: {name} is {value:g}; expected a number above 0")


def read_load_runs(paths: Iterable[str | os.PathLike]) -> list[LoadRun]:
    """The runs in files of any of these kinds; a CSV may name the ``model`` of each, too.

    Raises InputError ``FILE: what is wrong``.
    """
    return [run for path in paths for run in _runs(str(path), read_text(path, _EXPECTED))]


def _runs(where: str, text: str) -> Iterator[LoadRun]:
    start = text.lstrip()[:1]
    if start in ("{", "["):
        for record in records_of(text, where, _EXPECTED):
            yield from _of_tool(where, record)
    elif (start == "#" and "vllm:" in text) or start == "v":
        yield _of_scrapes(where, text)
    else:
        yield from _of_table(where, text)


def _of_tool(where: str, record: dict) -> Iterator[LoadRun]:
    if isinstance(record.get("benchmarks"), list):  # GuideLLM
        for each in record["benchmarks"]:
            metrics = each.get("metrics") if isinstance(each, dict) else None
            mean = _Means(where, metrics, ("successful", "mean"))
            failed = _Means(where, metrics, ("errored", "count"))
            _refuse_failures(where, failed.get("request_latency") or 0)
            yield LoadRun(
                mean["request_concurrency"], mean["output_tokens_per_second"], where, None,
                mean.get("prompt_token_count"), mean.get("output_token_count"),
            )  # fmt: skip
    elif isinstance(record.get("output_token_throughput"), dict):  # AIPerf
        mean = _Means(where, record, ("avg",))
        _refuse_failures(where, mean.get("error_request_count") or 0)
        out = mean["output_sequence_length"]
        took = mean["time_to_first_token"] + mean["inter_token_latency"] * (out - 1)
        yield LoadRun(
            mean["request_throughput"] * took / 1000, mean["output_token_throughput"], where, None,
            mean.get("input_sequence_length"), out,
        )  # fmt: skip
    else:
        mean = _Means(where, record, ())
        _refuse_failures(where, mean.get("failed") or 0)
        completed = mean["completed"]
        out = mean["total_output_tokens"] / completed if completed else math.nan
        took = mean["mean_ttft_ms"] + mean["mean_tpot_ms"] * (out - 1)
        sent = mean.get("total_input_tokens")
        model = record.get("model_id")
        yield LoadRun(
            mean["request_throughput"] * took / 1000, mean["output_throughput"], where,
            model if isinstance(model, str) else None,
            None if sent is None or not completed else sent / completed, out,
        )  # fmt: skip


class _Means:
    """The figures of a tool's result, each below the same keys."""

    def __init__(self, where: str, values, below: tuple[str, ...]):
        self.where, self.values, self.below = where, values, below

    def get(self, name: str) -> float | None:
        value = self.values.get(name) if isinstance(self.values, dict) else None
        for key in self.below:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) and value >= 0 else None

    def __getitem__(self, name: str) -> float:
        if (value := self.get(name)) is None:
            raise InputError(f"{self.where}: no {name}, a number; expected {_EXPECTED}")
        return value


def _refuse_failures(where: str, failed: float) -> None:
    if failed:
        raise InputError(
            f"{where}: {failed:,.0f} requests failed; expected a run in which all were served"
        )


def _of_scrapes(where: str, text: str) -> LoadRun:
    series = ScrapeSeries(tuple(parse_scrapes(text.encode(), where)))
    seconds, made = series.seconds, series.increase("generation_tokens")
    if seconds is None or len(seconds) < 3 or not made:
        raise InputError(
            f"{where}: fewer than three scrapes with times, or no token between them; expected "
            "scrapes of one run under load (check URL --keep FILE)"
        )
    finished = series.histogram("output_length")
    preempted = series.increase("preemptions") or 0
    if preempted > PREEMPTED * (finished.count if finished else 0):
        raise InputError(
            f"{where}: {preempted:,.0f} preemptions; expected a run with fewer requests in flight "
            "than the pool holds"
        )
    running = series.total("running")[series.busy]
    return LoadRun(float(np.nanmean(running)), made / float(seconds[-1]), where)


def _of_table(where: str, text: str) -> Iterator[LoadRun]:
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    wanted = ("running", "output_tokens_per_s")
    if not set(wanted) <= set(rows.fieldnames or ()):
        raise InputError(f"{where}: no {' and '.join(wanted)} in its header; expected {_EXPECTED}")
    for row in rows:
        line = f"{where}:{rows.line_num}"
        try:
            running, made = (float(row[name]) for name in wanted)
        except (TypeError, ValueError):
            cells = ", ".join(f"{name} {row[name]!r}" for name in wanted)
            raise InputError(f"{line}: {cells}; expected two numbers") from None
        yield LoadRun(running, made, line, row.get("model") or None)
