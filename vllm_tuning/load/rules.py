"""Scrapes under load against the rules: measured, limit, verdict, why it matters, what to change.

The server is healthy where nothing was preempted and the KV cache stayed below 90 %. The other
rules say more, but no verdict hangs on them: a burst always queues.
"""

from dataclasses import dataclass

import numpy as np

from ..diagnosis import Notice
from ..reading import Window
from .advice import (
    PEAK_LIMIT,
    against_a_full_pool,
    against_preemption,
    longest_length,
    observed_request,
)
from .server import Recommendation, Server, server_of

FLAT_QUEUE = 0.1  # of the requests running: so much a queue may grow


POOL_TOLERANCE = 0.01  # of the predicted pool


BUSY_SCRAPES = 3  # to tell a queue that grows from one that does not


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
    """What the scrapes say about the server; ``healthy`` is None where they do not tell."""

    window: Window
    server: Server
    rules: tuple[Rule, ...]
    notices: tuple[Notice, ...]

    @property
    def healthy(self) -> bool | None:
        lost, room = self.rules[:2]
        if "fail" in (lost.verdict, room.verdict):
            return False
        known = lost.verdict == "pass" and (
            room.measured is not None and self.window.complete("kv_cache_usage")
        )
        return True if known and not self.window.gone else None

    def to_dict(self) -> dict:
        """JSON of ``check``: shares from 0 to 1, tokens, null = not known."""
        return {
            "healthy": self.healthy,
            "engines": len(self.window.engines),
            "scrapes": len(self.window.scrapes),
            "restarts": self.window.restarts,
            "max_num_seqs": self.server.max_num_seqs,
            **_figures(self.window),
            "rules": [vars(rule) for rule in self.rules],
            "per_engine": [
                {"engine": one.engine, **_figures(one)} for one in self.window.per_engine
            ],
            "warnings": [notice.name for notice in self.notices],
            "explanations": [notice.text for notice in self.notices],
        }


def _figures(window: Window) -> dict:
    return {
        "preemptions": preemptions(window),
        "kv_cache_usage_peak": window.peak("kv_cache_usage"),
        "waiting_peak": count(window.peak("waiting")),
        "running_peak": count(window.peak("running")),
    }


def count(value: float | None) -> int | None:
    """A counter's value as a whole number."""
    return None if value is None else round(value)


def check(window: Window, launches=(), predicted: Recommendation | None = None) -> Verdict:
    """The verdict on the scrapes; LAUNCHES and a recommendation add what was promised.

    Raises InputError.
    """
    window.refuse_disorder()
    server = server_of(window, launches, predicted)
    rules = [_no_preemption(window, server), _room_to_spare(window, server), _flat_queue(window)]
    if server.max_num_seqs:
        rules.append(_all_fit(window, server))
    if server.predicted:
        rules += [_lengths_as_assumed(window, server), _pool_as_predicted(window, server)]
    return Verdict(window, server, tuple(rules), (*server.notices, *_notices(window)))


def preemptions(window: Window) -> int | None:
    """Last minus first, over restarts; of a lone scrape the count since the start, if it is 0."""
    if len(window.scrapes) > 1:
        return count(window.increase("preemptions"))
    return 0 if window.peak("preemptions") == 0 else None


def _no_preemption(window: Window, server: Server) -> Rule:
    lost, since = preemptions(window), window.peak("preemptions")
    why = (
        "A preempted request loses its KV cache and is computed again: work done twice, at the "
        "worst moment."
    )
    if lost:
        worst = max(window.per_engine, key=lambda one: preemptions(one) or 0)
        return Rule(
            "preemptions",
            lost,
            0,
            "fail",
            why,
            _at(worst, window) + against_preemption(worst, server),
        )
    unknown = (
        "vllm:num_preemptions_total is not among the metrics."
        if since is None
        else f"One scrape tells no interval: {since:,.0f} preemptions since the server started. "
        "Give two scrapes."
        if lost is None
        else "No traffic between the scrapes."
        if not window.traffic
        else "Some scrapes lack vllm:num_preemptions_total."
        if not window.complete("preemptions")
        else None
    )
    return _pass_or_unknown("preemptions", lost, 0, why, unknown)


def _room_to_spare(window: Window, server: Server) -> Rule:
    name, peak = "kv_cache_usage", window.peak("kv_cache_usage")
    why = "Above it a surge, or a few longer requests, find no block and something is preempted."
    if peak is not None and peak >= PEAK_LIMIT:
        fullest = max(window.per_engine, key=lambda one: one.peak(name) or 0)
        return Rule(
            f"{name}_peak",
            peak,
            PEAK_LIMIT,
            "fail",
            why,
            _at(fullest, window) + against_a_full_pool(fullest, server),
        )
    unknown = (
        "vllm:kv_cache_usage_perc is not among the metrics."
        if peak is None
        else "No traffic at or between the scrapes."
        if not window.traffic
        else "No scrape met a running request."
        if not window.busy.any()
        else "Some scrapes lack vllm:kv_cache_usage_perc."
        if not window.complete(name)
        else None
    )
    return _pass_or_unknown(f"{name}_peak", peak, PEAK_LIMIT, why, unknown)


def _pass_or_unknown(name: str, measured, limit, why: str, unknown: str | None) -> Rule:
    return Rule(
        name,
        measured,
        limit,
        "unknown" if unknown else "pass",
        f"{unknown} {why}" if unknown else why,
    )


def _at(one: Window, window: Window) -> str:
    return f"engine {one.engine}: " if len(window.engines) > 1 else ""


def _flat_queue(window: Window) -> Rule:
    why = (
        "A queue that keeps growing says that requests arrive faster than they are served; "
        "memory is then not the only limit."
    )
    waiting = window.total("waiting")
    known = window.busy & np.isfinite(waiting)
    if known.sum() < BUSY_SCRAPES:
        return _pass_or_unknown(
            "waiting",
            None,
            None,
            why,
            (
                "vllm:num_requests_waiting is not among the metrics."
                if window.peak("waiting") is None
                else f"{known.sum()} of the scrapes met requests; it takes {BUSY_SCRAPES}."
            ),
        )
    queue, third = waiting[known], max(1, known.sum() // 3)
    growth = float(queue[-third:].mean() - queue[:third].mean())
    limit = max(1.0, FLAT_QUEUE * (window.peak("running") or 0))
    return Rule(
        "waiting",
        growth,
        limit,
        "fail" if growth > limit else "pass",
        why,
        (
            "send less, or add a replica; a higher --max-num-seqs helps only while the KV cache has "
            "room"
        )
        if growth > limit
        else None,
    )


def _all_fit(window: Window, server: Server) -> Rule:
    seqs, pool, request = server.max_num_seqs, server.pool(window), observed_request(window)
    if not pool or not request:
        return Rule(
            "max_num_seqs",
            seqs,
            None,
            "unknown",
            "How many fit is not known: "
            + (
                "no finished request tells the length."
                if not request
                else "the pool is not known in tokens."
            ),
        )
    fit = pool.requests(request.length)
    why = (
        f"The pool holds {fit} requests of the observed p95 length ({request.length:,} tokens), "
        "all full at once: up to that number nothing can preempt."
    )
    if seqs <= fit:
        return Rule("max_num_seqs", seqs, fit, "pass", why)
    if preemptions(window):
        return Rule("max_num_seqs", seqs, fit, "fail", why, f"--max-num-seqs {fit}")
    return Rule(
        "max_num_seqs",
        seqs,
        fit,
        "unknown",
        f"{why} {seqs} are admitted, and this load did not fill them together; the next one may.",
    )


def _lengths_as_assumed(window: Window, server: Server) -> Rule:
    request, assumed = observed_request(window), server.predicted.workload
    why = (
        "The recommendation holds for requests of the length it assumed; longer ones take more "
        "of the pool."
    )
    if not request or not assumed:
        return Rule(
            "request_length",
            request and request.length,
            assumed and assumed.length,
            "unknown",
            why
            + (
                " It does not say which: make it again."
                if not assumed
                else " No finished request tells the length."
            ),
        )
    ends = longest_length(window)
    seen = (
        f"Observed p95: about {request.input_len:,} + {request.output_len:,} tokens, none "
        f"above {ends:,.0f}; assumed: {assumed.input_len:,} + {assumed.output_len:,}. "
    )
    longer = request.length > assumed.length
    return Rule(
        "request_length",
        request.length,
        assumed.length,
        "fail" if longer else "pass",
        seen + why,
        f"recommend again with --input-len {request.input_len} --output-len {request.output_len}"
        if longer
        else None,
    )


def _pool_as_predicted(window: Window, server: Server) -> Rule:
    predicted, launch, pool = server.predicted, server.launch, server.pool(window)
    why = "A pool that is not the one predicted moves the number of requests that fit."
    measured, limit = pool and pool.tokens, predicted.kv_cache_tokens
    flags = launch and (launch.max_num_seqs, launch.max_num_batched_tokens)
    if (
        not measured
        or not limit
        or flags != (predicted.max_num_seqs, predicted.max_num_batched_tokens)
    ):
        reason = (
            " The pool is not known in tokens."
            if not measured or not limit
            else " The log of the server (--launches) tells which flags it runs."
            if not flags
            else f" The server runs other flags ({flags[0]}, {flags[1]}) than recommended."
        )
        return Rule("kv_cache_tokens", measured, limit, "unknown", why + reason)
    off = abs(measured - limit) > POOL_TOLERANCE * limit
    return Rule(
        "kv_cache_tokens",
        measured,
        limit,
        "fail" if off else "pass",
        why,
        ("add the server's start-up log to the launches and recommend again") if off else None,
    )


def _notices(window: Window):
    if window.restarts:
        yield Notice(
            "restarted",
            f"the counters began anew {window.restarts} times: a restart, or "
            "scrapes out of order; each stretch was counted by itself",
        )
    if window.gone:
        yield Notice(
            "server_gone",
            f"the server stopped answering ({window.gone}); the verdict is "
            f"on the {len(window.scrapes)} scrapes before",
        )
    elif window.missed:
        yield Notice("samples_missed", f"{window.missed} samples were not answered in time")
    if len(window.scrapes) == 1:
        yield Notice(
            "one_scrape",
            "one scrape shows one moment: what came before and after it is "
            "not seen, counters are since the start",
        )
