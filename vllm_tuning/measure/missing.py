"""Beside launches that are made: those that are still missing for an answer."""

from dataclasses import dataclass, replace

from ..diagnosis import NextLaunch, next_launches
from ..memory_model import MemoryModel
from ..optimum import Optimum
from ..units import is_known

HIDDEN_STATES = "k, the hidden states, which --config config.json gives without a launch"


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
    model = optimum.model
    launches = [
        replace(each, max_num_batched_tokens=max(each.max_num_batched_tokens, least_budget))
        for each in (next_launches(model) if optimum.reason else missing_launches(model))
    ]
    return Missing(tuple(launches), optimum.reason)


def missing_launches(model: MemoryModel, tried=()) -> list[NextLaunch]:
    """Those that would identify what is not known; a k that is only assumed is such a thing too.

    k shows at four times the token budget of group 1, where the sampler still sets the peak there.
    tried: (mns, mnbt) that were launched to no avail.
    """
    wanted = next_launches(model, tried)
    if wanted or model.k_source != "assumed 0" or not is_known(model.k2):
        return wanted
    seqs, tokens = max(
        (fitted.launch.max_num_seqs or 1, fitted.launch.max_num_batched_tokens or 1)
        for fitted in model.launches
        if fitted.branch == "sampler"
    )
    by_model, by_sampler = model.pools(seqs, 4 * tokens)
    certain = by_sampler.n < by_model.n and (seqs, 4 * tokens) not in tried
    return [NextLaunch(seqs, 4 * tokens, HIDDEN_STATES)] if certain else []
