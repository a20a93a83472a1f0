"""What every step of a simulation did, as numpy arrays, as a table and as JSON steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .config import Request
from .scheduler import Step

EVENTS = ("new", "resumed", "preempted", "finished", "first_token")


@dataclass(frozen=True)
class Trace:
    """Arrays of one value a step, and (step, request) pairs; a request is an index of ``requests``.

    running, waiting: requests, and used: blocks taken, after scheduling; used_after: blocks after
    the step's output. kv_tokens: attended to by the running requests, those of the step included.
    What step s scheduled, in order, are entries ``first[s]:first[s + 1]`` of ``request`` and
    ``tokens``. new, resumed, preempted, finished, first_token (of the answer): rows (step,
    request). hits: rows (step, request, tokens not computed thanks to prefix caching). All
    integers. requests: in order of arrival, ``at`` the step of it.
    """

    requests: tuple[Request, ...]
    running: np.ndarray
    waiting: np.ndarray
    used: np.ndarray
    used_after: np.ndarray
    kv_tokens: np.ndarray
    first: np.ndarray
    request: np.ndarray
    tokens: np.ndarray
    new: np.ndarray
    resumed: np.ndarray
    preempted: np.ndarray
    finished: np.ndarray
    first_token: np.ndarray
    hits: np.ndarray

    def __len__(self) -> int:
        return len(self.running)

    def scheduled(self, step: int) -> dict:
        """Tokens of each request that a step scheduled, in order."""
        part = slice(self.first[step], self.first[step + 1])
        return {
            self.requests[request].id: tokens
            for request, tokens in zip(self.request[part].tolist(), self.tokens[part].tolist())
        }

    def grid(self) -> np.ndarray:
        """Tokens scheduled, one row a request and one column a step; 0 where it did not run."""
        tokens = np.zeros((len(self.requests), len(self)), dtype=int)
        tokens[self.request, np.repeat(np.arange(len(self)), np.diff(self.first))] = self.tokens
        return tokens

    def table(self) -> np.ndarray:
        """One record a step, by field: tokens and requests scheduled, queues, blocks, events."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])[self.first]
        columns = {
            "step": np.arange(len(self)),
            "tokens": np.diff(sums),
            "scheduled": np.diff(self.first),
            "running": self.running,
            "waiting": self.waiting,
            "used": self.used,
            "used_after": self.used_after,
            "kv_tokens": self.kv_tokens,
        }
        for name in EVENTS:
            columns[name] = np.bincount(getattr(self, name)[:, 0], minlength=len(self))
        table = np.empty(len(self), [(name, int) for name in columns])
        for name, values in columns.items():
            table[name] = values
        return table

    def steps(self) -> Iterator[dict]:
        """The steps in the replay format."""
        events = {name: self._by_step(name) for name in (*EVENTS, "hits")}
        for step, (run, wait, used, after) in enumerate(
            zip(
                *(
                    values.tolist()
                    for values in (self.running, self.waiting, self.used, self.used_after)
                )
            )
        ):
            happened = {name: rows.get(step, []) for name, rows in events.items()}
            record = {
                "s": step,
                "sched": [list(pair) for pair in self.scheduled(step).items()],
                "run": run,
                "wait": wait,
                "used": used,
                "pre": sorted((name for (name,) in happened["preempted"]), key=str),
            }
            if happened["new"]:
                record["new"] = [name for (name,) in happened["new"]]
            if happened["resumed"]:
                record["res"] = sorted((name for (name,) in happened["resumed"]), key=str)
            if happened["hits"]:
                record["hit"] = {name: tokens for name, tokens in happened["hits"]}
            yield record | {"fin": [name for (name,) in happened["finished"]], "used_after": after}

    def _by_step(self, name: str) -> dict[int, list[tuple]]:
        rows: dict[int, list[tuple]] = {}
        for step, request, *rest in getattr(self, name).tolist():
            rows.setdefault(step, []).append((self.requests[request].id, *rest))
        return rows


class TraceRecorder:
    """Keeps the steps as they are made; ``trace`` turns them into arrays."""

    def __init__(self):
        self.requests, self.steps, self.orders = [], [], []

    def add(self, step: Step, running) -> None:
        """Call it between schedule and update_from_output."""
        self.steps.append(step)
        self.orders.append(list(running))

    def trace(self) -> Trace:
        first = np.cumsum([0, *map(len, self.orders)])
        request = np.fromiter(chain.from_iterable(self.orders), int, first[-1])
        tokens = np.ones_like(request)
        for start, end, step in zip(first, first[1:], self.steps):
            if step.chunks:
                chunks = step.chunks.get
                tokens[start:end] = [chunks(number, 1) for number in request[start:end].tolist()]
        rows = {
            name: [
                (index, number)
                for index, step in enumerate(self.steps)
                for number in getattr(step, name)
            ]
            for name in EVENTS
        }
        hits = [(index, *hit) for index, step in enumerate(self.steps) for hit in step.hits.items()]
        return Trace(
            requests=tuple(self.requests),
            first=first,
            request=request,
            tokens=tokens,
            hits=np.array(hits, dtype=int).reshape(-1, 3),
            **{name: np.array(pairs, dtype=int).reshape(-1, 2) for name, pairs in rows.items()},
            **{
                name: np.array([getattr(step, name) for step in self.steps], dtype=int)
                for name in ("running", "waiting", "used", "used_after", "kv_tokens")
            },
        )
