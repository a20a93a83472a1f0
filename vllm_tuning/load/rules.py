"""Scrapes under load against the rules: measured, limit, verdict, why it matters, what to change.

The server is healthy where nothing was preempted and the KV cache stayed below 90 %. The other
rules say more, but no verdict hangs on them: a burst always queues.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..diagnosis import Notice
from ..launch import Launch
from ..memory_model import MemoryModel
from ..reading import ScrapeSeries
from .advice import (
    PEAK_LIMIT,
    against_a_full_pool,
    against_preemption,
    observed_request,
    what_is_lacking,
)
from .server import ServingLaunch, serving_launch

FLAT_QUEUE = 0.1  # of the requests running: so much a queue may grow
BUSY_SCRAPES = 3  # to see whether a queue grows


@dataclass(frozen=True)
class Rule:
    """One rule; measured and limit are None where not known, change where nothing is to be done."""

    name: str
    measured: float | None
    limit: float | None
    verdict: str
    why: str
    change: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What the scrapes say about the server; ``healthy`` is None where that is not known."""

    series: ScrapeSeries
    server: ServingLaunch
    rules: tuple[Rule, ...]
    notices: tuple[Notice, ...]

    @property
    def healthy(self) -> bool | None:
        lost, room = self.rules[:2]
        if "fail" in (lost.verdict, room.verdict):
            return False
        known = lost.verdict == "pass" and (
            room.measured is not None and self.series.complete("kv_cache_usage")
        )
        return True if known and not self.series.gone else None

    def to_dict(self) -> dict:
        """JSON of ``check``: shares from 0 to 1, tokens, null = not known."""
        return {
            "healthy": self.healthy,
            "engines": len(self.series.engines),
            "scrapes": len(self.series.scrapes),
            "restarts": self.series.restarts,
            "max_num_seqs": self.server.max_num_seqs,
            **_figures(self.series),
            "rules": [vars(rule) for rule in self.rules],
            "per_engine": [
                {"engine": one.engine, **_figures(one)} for one in self.series.per_engine
            ],
            "warnings": [notice.name for notice in self.notices],
            "explanations": [notice.text for notice in self.notices],
        }


def _figures(series: ScrapeSeries) -> dict:
    return {
        "preemptions": preemptions(series),
        "kv_cache_usage_peak": series.peak("kv_cache_usage"),
        "waiting_peak": count(series.peak("waiting")),
        "running_peak": count(series.peak("running")),
    }


def count(value: float | None) -> int | None:
    """A counter's value as a whole number."""
    return None if value is None else round(value)


def check(
    series: ScrapeSeries,
    launches: Sequence[Launch] = (),
    model: MemoryModel | None = None,
    notices: Sequence[Notice] = (),
) -> Verdict:
    """The verdict on the scrapes.

    launches: the server's start, or those among which it is: flags and pool. model: theirs.
    notices: what is to be said of these. Raises InputError for scrapes in disorder.
    """
    series.refuse_disorder()
    launch, unknown = serving_launch(series, launches) if launches else (None, None)
    server = ServingLaunch(launch, model)
    rules = [_no_preemption(series, server), _room_to_spare(series, server), _flat_queue(series)]
    if server.max_num_seqs:
        rules.append(_all_fit(series, server, server.max_num_seqs))
    first = [unknown] if unknown else []
    return Verdict(series, server, tuple(rules), (*first, *notices, *_notices(series)))


def preemptions(series: ScrapeSeries) -> int | None:
    """Last minus first, over restarts; of a lone scrape the count since the start, if it is 0."""
    if len(series.scrapes) > 1:
        return count(series.increase("preemptions"))
    return 0 if series.peak("preemptions") == 0 else None


def _no_preemption(series: ScrapeSeries, server: ServingLaunch) -> Rule:
    lost, since = preemptions(series), series.peak("preemptions")
    why = (
        "A preempted request loses its KV cache and is computed again: work done twice, at the "
        "worst moment."
    )
    unknown = change = None
    if lost:
        worst = max(series.per_engine, key=lambda one: preemptions(one) or 0)
        change = _at(worst, series) + against_preemption(worst, server)
    elif since is None:
        unknown = "vllm:num_preemptions_total is not among the metrics."
    elif lost is None:
        unknown = (
            f"One scrape tells no interval: {since:,.0f} preemptions since the server started. "
            "Give two scrapes."
        )
    elif not series.traffic:
        unknown = "No traffic between the scrapes."
    elif not series.complete("preemptions"):
        unknown = "Some scrapes lack vllm:num_preemptions_total."
    return _rule("preemptions", lost, 0, why, unknown, change)


def _room_to_spare(series: ScrapeSeries, server: ServingLaunch) -> Rule:
    name, peak = "kv_cache_usage", series.peak("kv_cache_usage")
    why = "Above it a surge, or a few longer requests, find no block and something is preempted."
    unknown = change = None
    if peak is None:
        unknown = "vllm:kv_cache_usage_perc is not among the metrics."
    elif peak >= PEAK_LIMIT:
        fullest = max(series.per_engine, key=lambda one: one.peak(name) or 0)
        change = _at(fullest, series) + against_a_full_pool(fullest, server)
    elif not series.traffic:
        unknown = "No traffic at or between the scrapes."
    elif not series.busy.any():
        unknown = "No scrape met a running request."
    elif not series.complete(name):
        unknown = "Some scrapes lack vllm:kv_cache_usage_perc."
    return _rule(f"{name}_peak", peak, PEAK_LIMIT, why, unknown, change)


def _flat_queue(series: ScrapeSeries) -> Rule:
    why = (
        "A queue that keeps growing says that requests arrive faster than they are served; "
        "memory is then not the only limit."
    )
    waiting = series.total("waiting")
    known = series.busy & np.isfinite(waiting)
    if series.peak("waiting") is None:
        unknown = "vllm:num_requests_waiting is not among the metrics."
        return _rule("waiting", None, None, why, unknown)
    if known.sum() < BUSY_SCRAPES:
        unknown = f"{known.sum()} of the scrapes met requests; it takes {BUSY_SCRAPES}."
        return _rule("waiting", None, None, why, unknown)
    queue, third = waiting[known], known.sum() // 3
    growth = float(queue[-third:].mean() - queue[:third].mean())
    limit = max(1.0, FLAT_QUEUE * (series.peak("running") or 0))
    change = (
        "send less, or add a replica; a higher --max-num-seqs helps only while the KV cache has "
        "room"
    )
    return _rule("waiting", growth, limit, why, change=change if growth > limit else None)


def _all_fit(series: ScrapeSeries, server: ServingLaunch, seqs: int) -> Rule:
    pool, request = server.pool(series), observed_request(series)
    if not pool or not request:
        why = f"How many fit is not known: {what_is_lacking(request)}."
        return Rule("max_num_seqs", seqs, None, "unknown", why)
    fit = pool.requests(request.length)
    why = (
        f"The pool holds {fit} requests of the observed p95 length ({request.length:,} tokens), "
        "all full at once: up to that number nothing can preempt."
    )
    if seqs <= fit:
        return Rule("max_num_seqs", seqs, fit, "pass", why)
    if preemptions(series):
        return Rule("max_num_seqs", seqs, fit, "fail", why, f"--max-num-seqs {fit}")
    why += f" {seqs} are admitted, and this load did not fill them together; the next one may."
    return Rule("max_num_seqs", seqs, fit, "unknown", why)


def _rule(name, measured, limit, why: str, unknown: str | None = None, change=None) -> Rule:
    """Failed where something is to be changed; else unknown for a reason, or passed."""
    if unknown:
        return Rule(name, measured, limit, "unknown", f"{unknown} {why}")
    return Rule(name, measured, limit, "fail" if change else "pass", why, change)


def _at(one: ScrapeSeries, series: ScrapeSeries) -> str:
    return f"engine {one.engine}: " if len(series.engines) > 1 else ""


def _notices(series: ScrapeSeries):
    if series.restarts:
        yield Notice(
            "restarted",
            f"the counters began anew {series.restarts} times: a restart, or "
            "scrapes out of order; each stretch was counted by itself",
        )
    if series.gone:
        yield Notice(
            "server_gone",
            f"the server stopped answering ({series.gone}); the verdict is "
            f"on the {len(series.scrapes)} scrapes before",
        )
    elif series.missed:
        yield Notice("samples_missed", f"{series.missed} samples were not answered in time")
    if len(series.scrapes) == 1:
        yield Notice(
            "one_scrape",
            "one scrape shows one moment: what came before and after it is "
            "not seen, counters are since the start",
        )
