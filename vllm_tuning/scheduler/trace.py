"""What every step of a simulation did, as it was made, as a table and as JSON steps."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .config import Request
from .scheduler import Step

COUNTS = ("tokens", "running", "waiting", "used", "used_after", "kv_tokens")
EVENTS = ("new", "resumed", "preempted", "finished", "first_token")


@dataclass(frozen=True)
class Trace:
    """The steps one by one; a request is an index of ``requests``.

    requests: in order of arrival, ``at`` the step of it. steps: what each did. order: the requests
    that ran in each, in the scheduler's order.
    """

    requests: list[Request] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    order: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def scheduled(self, step: int) -> dict[str | int, int]:
        """Tokens of each request that a step scheduled, in order, by its id."""
        tokens = self.steps[step].chunks.get
        return {self.requests[number].id: tokens(number, 1) for number in self.order[step]}

    def grid(self) -> np.ndarray:
        """Tokens scheduled, one row a request and one column a step; 0 where it did not run."""
        grid = np.zeros((len(self.requests), len(self)), dtype=int)
        for index, (step, order) in enumerate(zip(self.steps, self.order, strict=True)):
            grid[order, index] = [step.chunks.get(number, 1) for number in order]
        return grid

    def events(self, name: str) -> np.ndarray:
        """Rows (step, request) of one of ``EVENTS``; first_token: that of the answer."""
        rows = [(i, number) for i, step in enumerate(self.steps) for number in getattr(step, name)]
        return np.array(rows, dtype=int).reshape(-1, 2)

    def table(self) -> np.ndarray:
        """One record a step, by field: its number, its ``COUNTS``, and how many of each event."""
        rows = [
            (
                index,
                *(getattr(step, name) for name in COUNTS),
                *(len(getattr(step, name)) for name in EVENTS),
            )
            for index, step in enumerate(self.steps)
        ]
        return np.array(rows, dtype=[(name, int) for name in ("step", *COUNTS, *EVENTS)])

    def to_json(self) -> Iterator[dict]:
        """The steps in the replay format."""

        def ids(numbers) -> list:
            return [self.requests[number].id for number in numbers]

        for index, step in enumerate(self.steps):
            record = {
                "s": index,
                "sched": [list(pair) for pair in self.scheduled(index).items()],
                "run": step.running,
                "wait": step.waiting,
                "used": step.used,
                "pre": sorted(ids(step.preempted), key=str),
            }
            if step.new:
                record["new"] = ids(step.new)
            if step.resumed:
                record["res"] = sorted(ids(step.resumed), key=str)
            if step.hits:
                record["hit"] = dict(zip(ids(step.hits), step.hits.values(), strict=True))
            yield record | {"fin": ids(step.finished), "used_after": step.used_after}
