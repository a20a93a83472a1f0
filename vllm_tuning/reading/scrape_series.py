"""What scrapes hold over time: peaks of gauges, increases of counters over restarts, lengths."""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..units import InputError
from ..workload import Workload
from .files import opened
from .lengths import REQUESTS, lengths_from_histograms, read_lengths
from .metrics import Histogram, Scrape, read_scrapes


@dataclass(frozen=True)
class ScrapeSeries:
    """Scrapes of one server in time order; ``engine`` narrows it to one, None is all of them.

    gone: why the server stopped answering, where it did. missed: samples it did not answer.
    """

    scrapes: tuple[Scrape, ...]
    engine: str | None = None
    missed: int = 0
    gone: str | None = None

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """The data-parallel engines, by number."""
        if self.engine is not None:
            return (self.engine,)
        names = {name for scrape in self.scrapes for name in scrape.engines}
        return tuple(sorted(names, key=lambda name: (len(name), name)))

    @property
    def per_engine(self) -> tuple["ScrapeSeries", ...]:
        return tuple(replace(self, engine=engine) for engine in self.engines)

    def figure(self, name: str, engine: str) -> np.ndarray:
        """A figure of one engine at each scrape, NaN where it is absent."""
        return np.array(
            [
                scrape.engines[engine].figures.get(name, np.nan)
                if engine in scrape.engines
                else np.nan
                for scrape in self.scrapes
            ]
        )

    def total(self, name: str) -> np.ndarray:
        """A figure of all engines at each scrape: the sum, of kv_cache_usage the largest.

        NaN where no engine gives it.
        """
        every = np.array([self.figure(name, engine) for engine in self.engines])
        known = np.isfinite(every)
        combined = (
            np.where(known, every, -np.inf).max(axis=0)
            if name == "kv_cache_usage"
            else np.where(known, every, 0).sum(axis=0)
        )
        return np.where(known.any(axis=0), combined, np.nan)

    def peak(self, name: str) -> float | None:
        """The largest scraped total; what happens between two scrapes is not seen."""
        values = self.total(name)
        return float(np.nanmax(values)) if np.isfinite(values).any() else None

    def complete(self, name: str) -> bool:
        """Whether each engine gives the figure in each scrape that it is in."""
        return all(
            name in scrape.engines[engine].figures
            for scrape in self.scrapes
            for engine in self.engines
            if engine in scrape.engines
        )

    def counted(self, name: str) -> np.ndarray:
        """A counter since the first scrape, summed over restarts and engines.

        NaN before an engine has it in two scrapes.
        """
        every = np.full((len(self.engines), len(self.scrapes)), np.nan)
        for counted, engine in zip(every, self.engines, strict=True):
            values = self.figure(name, engine)
            held = np.flatnonzero(np.isfinite(values))
            if len(held) > 1:
                steps = np.diff(values[held])
                anew = (steps < 0) | self._started_anew(engine, held)
                counted[held[0] :] = 0
                counted[held[1:]] = np.where(anew, values[held[1:]], steps)
                counted[held[0] :] = np.cumsum(counted[held[0] :])
        return np.where(np.isfinite(every).any(axis=0), np.nansum(every, axis=0), np.nan)

    def increase(self, name: str) -> float | None:
        """Last minus first of a counter; None where no engine has it in two scrapes."""
        last = self.counted(name)[-1]
        return float(last) if np.isfinite(last) else None

    def _started_anew(self, engine: str, held=slice(None)) -> np.ndarray:
        """Whether the engine's start moved from each of the scrapes held to the next."""
        return np.nan_to_num(np.diff(self.figure("started", engine)[held])) != 0

    @cached_property
    def restarts(self) -> int:
        """How often an engine's counters began anew."""
        return sum(
            int(
                np.any(
                    [
                        self._started_anew(engine),
                        *(
                            np.diff(self.figure(name, engine)) < 0
                            for name in ("preemptions", "prompt_tokens", "generation_tokens")
                        ),
                    ],
                    axis=0,
                ).sum()
            )
            for engine in self.engines
        )

    def refuse_disorder(self) -> None:
        """A start never moves back, a counter of one start never falls. Raises InputError."""
        for engine in self.engines:
            made, started = (
                np.diff(self.figure(name, engine)) for name in ("generation_tokens", "started")
            )
            for now in np.flatnonzero((started < 0) | (made < 0) & (started == 0)):
                raise InputError(
                    f"{self.scrapes[now + 1].where}: older than {self.scrapes[now].where} before "
                    "it, or of another server (behind one address?); give the scrapes of one "
                    "server, in time order"
                )

    @property
    def seconds(self) -> np.ndarray | None:
        """Times of the scrapes since the first; None where one has none, or they do not rise."""
        times = np.array([s.seconds for s in self.scrapes if s.seconds is not None])
        rising = len(times) == len(self.scrapes) and (np.diff(times) > 0).all()
        return times - times[0] if rising else None

    @cached_property
    def busy(self) -> np.ndarray:
        """Which scrapes met requests: running ones, waiting ones, or their KV cache."""
        return np.any(
            [
                np.nan_to_num(self.total(name)) > 0
                for name in ("running", "waiting", "kv_cache_usage")
            ],
            axis=0,
        )

    @property
    def traffic(self) -> bool:
        """Whether there was any request, at a scrape or between two."""
        finished = self.histogram("output_length")
        return bool(
            self.busy.any()
            or any(
                self.increase(name)
                for name in ("preemptions", "prompt_tokens", "generation_tokens")
            )
            or (len(self.scrapes) > 1 and finished and finished.count)
        )

    def histogram(self, name: str) -> Histogram | None:
        """What was observed from the first scrape to the last, over restarts and engines.

        Of a lone scrape: since the server's start.
        """
        parts = [part for engine in self.engines for part in self._parts(engine, name)]
        if not parts:
            return None
        shared = set.intersection(*(set(part.buckets) for _, part in parts))
        return Histogram(
            {bound: sum(sign * part.buckets[bound] for sign, part in parts) for bound in shared},
            sum(sign * part.total for sign, part in parts),
        )

    def _parts(self, engine: str, name: str):
        """(sign, histogram): each restart's last one, less the first of all where there are two."""
        held = [
            place
            for place, scrape in enumerate(self.scrapes)
            if engine in scrape.engines and name in scrape.engines[engine].histograms
        ]
        every = [self.scrapes[place].engines[engine].histograms[name] for place in held]
        if len(held) > 1:
            yield -1, every[0]
        started_anew = self._started_anew(engine, held)
        for (old, new), anew in zip(itertools.pairwise(every), started_anew, strict=True):
            if anew or new.count < old.count:
                yield 1, old
        if held:
            yield 1, every[-1]

    @cached_property
    def lengths(self) -> list[Workload]:
        """A hundred requests with the lengths observed; [] where nothing was finished."""
        prompt, output = map(self.histogram, ("prompt_length", "output_length"))
        return (
            lengths_from_histograms(*((each.buckets, each.mean) for each in (prompt, output)))
            if prompt and output and prompt.count > 0 and output.count > 0
            else []
        )

    def label(self, name: str) -> str | None:
        """A label of vllm:cache_config_info, the same in all engines; else None."""
        values = {
            scrape.engines[engine].cache.get(name)
            for scrape in self.scrapes
            for engine in self.engines
            if engine in scrape.engines
        } - {None}
        return values.pop() if len(values) == 1 else None

    def cache(self, name: str) -> int | None:
        """``label`` as a whole number above 0."""
        text = self.label(name) or ""
        return int(text) if text.isascii() and text.isdigit() and int(text[:15]) > 0 else None


def lengths_of(path) -> list[Workload]:
    """Requests of a CSV or JSONL file, or those of /metrics scrapes. Raises InputError."""
    with opened(path, REQUESTS) as read:
        scraped = b"\nvllm:" in b"\n" + read(2**20)
    if not scraped:
        return read_lengths(path)
    if lengths := ScrapeSeries(tuple(read_scrapes([path]))).lengths:
        return lengths
    raise InputError(
        f"{path}: no finished request in vllm:request_prompt_tokens and "
        "vllm:request_generation_tokens"
    )
