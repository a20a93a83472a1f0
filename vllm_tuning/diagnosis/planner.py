"""Which launches to make: two groups, each far in its branch, and what is missing of them.

Each launch lies in its branch by a factor of 1.5, by slopes that the model's shapes let one expect,
and each group spans a factor of four:

    group 1, the sampler run:  mns C and 4C at mnbt 512;  C = max(128, 1.5*(K1 - k)*512/K2)
    group 2, the model run:    mnbt B and 4B at mns 16;   B = max(2048, 1.5*K2*16/(K1 - k))

C and B are rounded up to powers of two. 128 requests at least, because the sampler of releases
before 0.17 is steeper below. On vLLM's own profile runs over 16 grids of flags the answer from
these four is within 0.15 % of that from the whole grid (tests/benchmarks/bench_plan.py).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..known import Slopes
from ..launch import serve_flags
from ..memory_model import MemoryModel
from ..optimum import longest_request
from ..units import is_known

GROUP_1 = "group 1: the sampler run, which gives K2"
GROUP_2 = "group 2: the model run, which gives K1"
HIDDEN_STATES = "k, the hidden states, which --config config.json gives without a launch"
SURE = 1.5  # times the other branch's peak
GROUP_1_AT, GROUP_1_FROM = 512, 128  # mnbt; the least mns
GROUP_2_AT, GROUP_2_FROM = 16, 2048  # mns; the least mnbt

Starts = Callable[[int, int], bool]


@dataclass(frozen=True)
class NextLaunch:
    """A launch to make, and what it is for."""

    max_num_seqs: int
    max_num_batched_tokens: int
    why: str

    @property
    def flags(self) -> str:
        return serve_flags(self.max_num_seqs, self.max_num_batched_tokens)


def four_launches(slopes: Slopes, starts: Starts, least_budget: int = 1) -> list[NextLaunch]:
    """The two groups of a server of which nothing is launched yet.

    starts: whether a server with (mns, mnbt) would come up, as far as one can tell; least_budget:
    tokens, below which it is refused.
    """
    return [
        NextLaunch(*flags, why)
        for why in (GROUP_1, GROUP_2)
        for flags in _pair(why, slopes, starts, least_budget)
    ]


def next_launches(
    model: MemoryModel, tried=(), least_budget: int = 1, hidden_states: bool = False
) -> list[NextLaunch]:
    """The launches that would identify what is missing; those that are made count.

    tried: (mns, mnbt) that were launched to no avail, such as those that failed; hidden_states:
    whether a k that is only assumed is missing, too. None is among them that could not start, as
    far as the launches show.
    """
    slopes = _slopes(model)
    seen = {*tried} | {fitted.flags for fitted in model.launches}

    def starts(seqs: int, tokens: int) -> bool:
        return (seqs, tokens) not in seen and _room(model, slopes, seqs, tokens) > 0

    wanted = []
    for why, name in ((GROUP_1, "k2"), (GROUP_2, "k1")):
        if is_known(getattr(model, name)) and model.assumed != name:
            continue
        made = [
            (seqs or 1, tokens)
            for seqs, tokens in (fitted.flags for fitted in model.launches)
            if (_leans(slopes, seqs or 1, tokens) > 1) == (why == GROUP_1)
        ]
        pair = _pair(why, slopes, lambda *flags: _room(model, slopes, *flags) > 0, least_budget)
        flags = [each for each in pair if each not in seen]
        if made and len(flags) != 1:  # others than the rule's
            flags = [each for each in _beside(why, made, least_budget) if starts(*each)][:1]
        elif not all(starts(*each) for each in flags):
            flags = [each for each in _beside(why, pair, least_budget) if starts(*each)][:1]
        wanted += [NextLaunch(*each, why) for each in flags]
    if wanted or not hidden_states or model.k_source != "assumed" or not is_known(model.k2):
        return wanted
    seqs, tokens = max(
        (fitted.flags[0] or 1, fitted.flags[1])
        for fitted in model.launches
        if fitted.branch == "sampler"
    )
    for step in (16, 8, 4, 2):  # k shows where the sampler still sets the peak
        if _leans(slopes, seqs, step * tokens) > 1 and starts(seqs, step * tokens):
            return [NextLaunch(seqs, step * tokens, HIDDEN_STATES)]
    return []


def _pair(why: str, slopes: Slopes, starts: Starts, least: int) -> list[tuple[int, int]]:
    """The rule's two launches of a group; the second is nearer where it could not start."""
    budget = max(GROUP_1_AT, least)
    if why == GROUP_1:
        low = max(GROUP_1_FROM, _power(SURE * (slopes.k1 - slopes.k) * budget / slopes.k2))
        ends = [(low * step, max(low * step, budget)) for step in (1, 4, 2)]
    else:
        low = _power(SURE * slopes.k2_of_few * GROUP_2_AT / (slopes.k1 - slopes.k))
        low = max(GROUP_2_FROM, _power(least), low)
        ends = [(GROUP_2_AT, low * step) for step in (1, 4, 2)]
    return [ends[0], ends[1] if starts(*ends[1]) else ends[2]]


def _beside(why: str, made: list[tuple[int, int]], least: int) -> Iterator[tuple[int, int]]:
    """Partners of launches in one group, the most telling first."""
    axis = 0 if why == GROUP_1 else 1
    low, high = (end(made, key=lambda flags: flags[axis]) for end in (min, max))
    for (seqs, tokens), step in ((high, 4), (low, 1 / 4), (high, 2), (low, 1 / 2), (high, 8)):
        if why == GROUP_1 and seqs * step >= GROUP_1_FROM:
            yield int(seqs * step), max(tokens, int(seqs * step))
        elif why == GROUP_2 and tokens * step >= max(least, GROUP_1_AT):
            yield seqs, int(tokens * step)


def _slopes(model: MemoryModel) -> Slopes:
    """Those that are known, else those to expect."""
    found = {name: getattr(model, name) for name in ("k1", "k2", "k")}
    known = {name: value.n for name, value in found.items() if is_known(value)}
    if known.get("k1", math.inf) <= known.get("k", 0):
        return model.slopes
    return model.slopes._replace(**known)


def _leans(slopes: Slopes, seqs: int, tokens: int) -> float:
    """How many times the model run's peak the sampler run's is, less what both share."""
    return slopes.k2 * min(seqs, tokens) / ((slopes.k1 - slopes.k) * tokens)


def _room(model: MemoryModel, slopes: Slopes, seqs: int, tokens: int) -> float:
    """Bytes of the pool at (C, B) beyond a request of max_model_len; inf where no pool is known."""
    request = model.request_bytes(longest_request(model), tokens)
    need = request.n if is_known(request) else 0.0
    peak = slopes.peak(seqs, tokens)
    pools = [
        fitted.launch.kv_cache + slopes.peak(fitted.flags[0] or 1, fitted.flags[1]) - peak
        for fitted in model.launches
        if fitted.launch.kv_cache is not None
    ]
    return min(pools, default=math.inf) - need


def _power(value: float) -> int:
    """The smallest power of two at or above it, at least 1."""
    return 2 ** math.ceil(math.log2(max(1, value)))
