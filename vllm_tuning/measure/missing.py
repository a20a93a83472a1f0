"""Beside launches that are made: those that are still missing for an answer."""

from dataclasses import dataclass

from ..diagnosis import NextLaunch, next_launches
from ..optimum import Optimum


@dataclass(frozen=True)
class Missing:
    """The launches that are missing; ``reason``: why there is no answer, None where there is."""

    launches: tuple[NextLaunch, ...]
    reason: str | None

    @property
    def why(self) -> str:
        """A sentence for the reader."""
        if self.launches:
            text = self.reason or f"not known yet: {self.launches[0].why}"
        elif self.reason:
            text = f"no launch of these two flags would help: {self.reason}"
        else:
            text = "enough: nothing is missing"
        return f"{text[0].upper()}{text[1:]}."

    def to_dict(self) -> dict:
        """JSON of ``plan LAUNCHES``; ``next`` is the first of ``launches``, null without any."""
        launches = [vars(launch) for launch in self.launches]
        return {
            "next": launches[0] if launches else None,
            "enough": not launches and self.reason is None,
            "why": self.why,
            "launches": launches,
        }


def missing_for(optimum: Optimum, least_budget: int = 1) -> Missing:
    """What is missing for an answer, whose ``reason`` is a sentence; least_budget: tokens.

    vLLM takes no mnbt below ``least_budget``.
    """
    launches = next_launches(
        optimum.model, least_budget=least_budget, hidden_states=optimum.reason is None
    )
    return Missing(tuple(launches), optimum.reason)
