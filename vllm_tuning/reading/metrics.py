"""A server's /metrics, as saved or as fetched, of any release: Prometheus text -> scrapes.

One table of names, newest first. What a scrape does not hold is absent, never 0.
"""

import itertools
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..units import LARGEST_COUNT, InputError
from .files import opened
from .kinds import not_expected

FIGURES = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # up to 0.11
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "started": ("vllm:num_preemptions_created", "vllm:num_preemptions_total_created"),
}

HISTOGRAMS = {
    "prompt_length": ("vllm:request_prompt_tokens",),
    "output_length": ("vllm:request_generation_tokens",),
    "steps": ("vllm:iteration_tokens_total",),
}

_CACHE = "vllm:cache_config_info"

_PROCESS_START = "process_start_time_seconds"

_LARGEST_FILE = 2**26

_METRICS = "what GET /metrics of a vLLM server answers"

_EXPECTED = f"expected {_METRICS}"


@dataclass(frozen=True)
class Histogram:
    """Observations at or below each upper end, inf the last; their sum, NaN if unknown."""

    buckets: dict[float, float]
    total: float

    @property
    def count(self) -> float:
        return self.buckets[math.inf]

    @property
    def mean(self) -> float | None:
        return None if math.isnan(self.total) or not self.count else self.total / self.count

    def quantile(self, share: float) -> float | None:
        """The upper end of the bucket that holds it; inf above the last, None if empty."""
        return min(
            (
                bound
                for bound, count in self.buckets.items()
                if self.count and count >= share * self.count
            ),
            default=None,
        )


@dataclass
class EngineScrape:
    """One engine at one moment, under the names of ``FIGURES`` and ``HISTOGRAMS``.

    cache: the labels of vllm:cache_config_info.
    """

    figures: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    cache: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scrape:
    """All engines at one moment; ``seconds`` since some origin, None where no time is known."""

    where: str
    seconds: float | None
    engines: dict[str, EngineScrape]


def read_scrapes(paths: Iterable[str | os.PathLike]) -> list[Scrape]:
    """The scrapes of saved files in the order given; a folder is its ``*.prom`` by name.

    Raises InputError ``FILE: what is wrong, and what would be right``.
    """
    scrapes = []
    for path in map(Path, paths):
        if path.parts[:1] in (("http:",), ("https:",)):
            raise InputError(
                "scrapes are files here; vllm-tuning check URL --keep FILE samples a URL"
            )
        files = sorted(path.glob("*.prom")) if path.is_dir() else [path]
        if not files:
            raise InputError(f"{path}: no *.prom in this folder; {_EXPECTED}, saved")
        for file in files:
            with opened(file, _METRICS) as read:
                scrapes += parse_scrapes(read(_LARGEST_FILE), str(file))
    return scrapes


def parse_scrapes(content: bytes, where: str, seconds: float | None = None) -> list[Scrape]:
    """The scrapes in a Prometheus text: one, or one for each time stamp that it writes.

    ``seconds``: when it was taken. Raises InputError, its line naming ``where``.
    """
    samples: dict[float | None, dict] = {}
    for name, labels, value, time in _samples(_text(content, where), where):
        key = name, tuple(sorted(labels.items()))
        if key in samples.setdefault(time, {}):
            raise InputError(
                f"{where}: {name} stands twice for the same labels; one scrape a "
                "file, or a time stamp on each line"
            )
        samples[time][key] = value
    always = samples.pop(None, {})
    times = sorted(time for time in samples if time is not None)
    if not times:
        return [_scrape(always, where, seconds)]
    return [_scrape(always | samples[time], where, time) for time in times]


def stamped(content: bytes, seconds: float) -> str:
    """The lines of one scrape that are read, each with the time as ``parse_scrapes`` reads it."""
    names = (
        _CACHE,
        _PROCESS_START,
        *(name for group in (*FIGURES.values(), *HISTOGRAMS.values()) for name in group),
    )
    return "".join(
        f"{line} {round(1000 * seconds)}\n"
        for line in content.decode("utf-8-sig").splitlines()
        if line.startswith(names)
    )


def _text(content: bytes, where: str) -> str:
    if len(content) >= _LARGEST_FILE:
        raise InputError(f"{where}: larger than 64 MiB; fewer scrapes, or a part of them, do")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{where}: not a text; {_EXPECTED}")
    kind = {"": "empty", "<": "an HTML page", "{": "JSON", "[": "JSON"}.get(text.lstrip()[:1])
    if kind:
        raise not_expected(where, text, f"{kind}, not metrics", _METRICS, "/metrics")
    if not text.endswith("\n"):
        raise InputError(
            f"{where}: ends in the middle of a line: cut off while it was saved? Scrape again"
        )
    return text


def _samples(text: str, where: str):
    """Name, labels, value, time of all metrics of vLLM, and of the start of its process."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, time, *_ in family.samples:
                if name.startswith("vllm:") or name == _PROCESS_START:
                    yield name, labels, float(value), None if time is None else float(time)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        why = f"not Prometheus text ({reason})"
        raise not_expected(where, text, why, _METRICS, "/metrics") from None


def _scrape(samples: dict, where: str, seconds: float | None) -> Scrape:
    found: dict[str, dict[str, list]] = {}
    start = samples.pop((_PROCESS_START, ()), None)
    for (name, items), value in samples.items():
        labels = dict(items)
        found.setdefault(labels.get("engine", ""), {}).setdefault(name, []).append((labels, value))
    if not found:
        raise InputError(f"{where}: no metric of vLLM (vllm:...); {_EXPECTED}")
    # Without a label: the only engine, and in some releases the cache of them all.
    unlabelled = found.pop("", {})
    found = found or {"0": unlabelled}
    engines = {
        engine: _engine(series, unlabelled.get(_CACHE, []), start, where)
        for engine, series in found.items()
    }
    return Scrape(where, seconds, engines)


def _engine(series: dict, cache: list, start: float | None, where: str) -> EngineScrape:
    one = EngineScrape()
    for labels, _ in series.get(_CACHE, cache):
        one.cache.update(labels)
    for figure, names in FIGURES.items():
        values = [value for _, value in next((series[n] for n in names if n in series), [])]
        if values and (value := _checked(figure, values, where)) is not None:
            one.figures[figure] = value
    if start is not None:
        one.figures.setdefault("started", start)
    for histogram, names in HISTOGRAMS.items():
        if read := next(filter(None, (_histogram(name, series, where) for name in names)), None):
            one.histograms[histogram] = read
    return one


def _checked(figure: str, values: list[float], where: str) -> float | None:
    share = figure == "kv_cache_usage"
    value = max(values) if share or figure == "started" else sum(values)
    if math.isnan(value):
        return None
    if not 0 <= value < math.inf or (share and value > 1 + 1e-9):
        raise InputError(
            f"{where}: {FIGURES[figure][0]} is {value:g}; expected "
            + ("a share from 0 to 1" if share else "a number of 0 or more")
        )
    return value


def _histogram(name: str, series: dict, where: str) -> Histogram | None:
    """None where it is not whole: buckets up to +Inf."""
    buckets: dict[float, float] = {}
    for labels, value in series.get(f"{name}_bucket", ()):
        le = labels.get("le", "")
        try:
            bound = float(le)
        except ValueError:
            bound = math.nan
        if not (0 <= bound <= LARGEST_COUNT or bound == math.inf):
            raise InputError(f"{where}: {name}_bucket ends at {le[:20]!r}; expected a number")
        buckets[bound] = buckets.get(bound, 0.0) + value
    if math.inf not in buckets:
        return None
    counts = [0.0, *(buckets[bound] for bound in sorted(buckets))]
    sums = [value for _, value in series.get(f"{name}_sum", ())]
    if not (
        all(low <= high for low, high in itertools.pairwise(counts))
        and counts[-1] <= LARGEST_COUNT
        and 0 <= sum(sums) < math.inf
    ):
        raise InputError(
            f"{where}: {name}_bucket counts fewer requests in a wider bucket, or its "
            f"sum is {sum(sums):g}; {_EXPECTED}"
        )
    return Histogram(buckets, sum(sums) if sums else math.nan)
