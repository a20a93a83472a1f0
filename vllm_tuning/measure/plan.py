"""Which launches to make: two a group from the model's shapes, then the one that tells most.

Rules of the first four: each group spans a factor of four or more around the flags that are
expected to be the answer, until the rounding of the log costs less than 1 % of its slope; group 1
stays at 128 requests and above (the sort sampler is steeper below) unless the answer lies lower;
each launch lies in its branch by a factor of 1.5, by ``budget.estimates``. Without a config.json
the widths are those of a Llama 3 8B, without a GPU the answer is taken to be near 256 requests.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from uncertainties import covariance_matrix, ufloat

from ..budget import Capacity, Server, capacity, profile_slopes
from ..diagnosis import GROUP_1, GROUP_2, NextLaunch
from ..kv_cache import ModelConfig
from ..launch import serve_flags
from ..law import refined_point
from ..least_squares import least_squares
from ..memory_model import MemoryModel
from ..optimum import Optimum, optimum_of
from ..pool import open_k
from ..readings import ROOT3
from ..units import GIB, NORMAL_95, InputError, is_known
from ..workload import Workload

LLAMA_3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}


PRINTED = 0.005 * GIB  # half of the last digit that vLLM prints


ROUNDING = 0.01  # of a slope, at most


SURE = 1.5  # times the other branch's peak, above what both share


FEW = 16  # requests of group 2


SMALLEST = 128  # tokens of a step that any model takes


USUAL = 256, 4096  # (mns, mnbt) where nothing tells the answer


LARGEST = 4096, 65536


@dataclass(frozen=True)
class Plan:
    """Launches to make, and what could not be kept of the rules."""

    launches: tuple[NextLaunch, ...]
    notes: tuple[str, ...] = ()
    expected: tuple[float, float] | None = None

    def to_dict(self) -> dict:
        """JSON of ``plan``: ``expected`` is the answer by the estimates, null without a GPU."""
        return {
            "launches": [vars(launch) for launch in self.launches],
            "notes": list(self.notes),
            "expected": self.expected
            and dict(zip(("max_num_seqs", "max_num_batched_tokens"), self.expected)),
        }


def plan_launches(
    config=None, workload: Workload | None = None, chunked_prefill: bool = True, **flags
) -> Plan:
    """The first launches for a model. ``flags`` are those of ``budget.capacity``: ``gpu_memory``
    in bytes, ``max_model_len``, ``vllm_version`` and so on. Raises InputError."""
    found = capacity(config, lengths=(workload,) if workload else (), **flags) if config else None
    return _Planner(found, workload, chunked_prefill, flags).plan()


class _Planner:
    """The shapes' estimates, the expected answer, and the two groups around it."""

    def __init__(self, found: Capacity | None, workload, chunked_prefill: bool, flags: dict):
        self.config = found.config if found else ModelConfig("Llama 3 8B", LLAMA_3_8B)
        self.version = flags.get("vllm_version")
        self.notes = (
            []
            if found
            else ["No config.json: the widths of a Llama 3 8B are taken, on whatever GPU."]
        )
        self.known_k = bool(found)
        longest = found.max_model_len if found else flags.get("max_model_len")
        if not (chunked_prefill or longest):
            raise InputError(
                "without chunked prefill max_num_batched_tokens is at least "
                "max_model_len: give that, or the model's config.json"
            )
        self.least = SMALLEST if chunked_prefill else max(SMALLEST, longest)
        unit = found.cache.block_bytes / 2 if found and not found.cache.hybrid else PRINTED
        self.error = min(PRINTED, unit) / ROOT3
        self.room = self.answer = None
        if found and found.budget:
            activation = next(p for p in found.budget.parts if p.name == "activation")
            left_over = found.pool.value + activation.value
            self.room = left_over - found.cache.request_blocks(longest, 1) * found.cache.block_bytes
            self.answer = self._answer(found, workload, left_over)

    def slopes(self, seqs: int) -> tuple[float, float, float]:
        """K1, K2, k at so many requests."""
        return profile_slopes(
            self.config,
            Server(
                total_memory=0,
                gpu_memory_utilization=1,
                max_num_seqs=seqs,
                max_num_batched_tokens=1,
                vllm_version=self.version,
            ),
        )

    def _answer(self, found: Capacity, workload, left_over) -> tuple[float, float] | None:
        if self.room <= 0:
            self.notes.append(
                "By the estimate this GPU holds no request of max_model_len "
                f"{found.max_model_len:,}: vLLM would not start. Give a shorter --max-model-len."
            )
            self.room = None
        k1, k2, k = self.slopes(128)
        if workload is None or left_over <= 0 or k1 <= k:
            return None
        request = found.cache.request_blocks(workload.length, found.max_num_batched_tokens)
        return refined_point(left_over, left_over, request * found.cache.block_bytes, k1, k2, k)

    def plan(self) -> Plan:
        seqs, tokens = self.answer or USUAL
        if not self.answer:
            self.notes.append(
                f"The answer is taken to be near mns {seqs:,}, mnbt {tokens:,}: "
                "config.json, a GPU and the lengths of requests would tell."
            )
        return Plan(
            (
                *(NextLaunch(*pair, GROUP_1) for pair in self.group_1(seqs)),
                *(NextLaunch(*pair, GROUP_2) for pair in self.group_2(tokens)),
            ),
            tuple(self.notes),
            self.answer,
        )

    def group_1(self, seqs: float) -> list[tuple[int, int]]:
        """Few tokens, so that the sampler sets the peak: one budget for both, or each its own."""
        low = max(2, _power(seqs / 2), 128 if seqs >= 128 else 0)
        k1, k2, k = self.slopes(low)
        while True:
            high = self._apart(
                low, k2, LARGEST[0], lambda high: k2 * high + k * max(high, self.least)
            )
            for budgets in [(max(high, self.least),) * 2] + [
                (max(low, self.least), max(high, self.least))
            ] * self.known_k:
                if k2 * low >= SURE * (k1 - k) * budgets[0]:
                    return list(zip((low, high), budgets))
            if 2 * low > LARGEST[0] / 4:
                self.notes.append(
                    "By the estimate the model run sets the peak of group 1 too, as "
                    "far as vLLM's rules let it be planned."
                )
                return [(low, budgets[0]), (high, budgets[1])]
            low *= 2

    def group_2(self, tokens: float) -> list[tuple[int, int]]:
        """Few requests, so that the model run sets the peak."""
        low, seqs = max(2 * FEW, _power(tokens / 2), self.least), FEW
        k1, k2, k = self.slopes(seqs)
        while (k1 - k) * low < SURE * k2 * seqs and low < LARGEST[1] / 4:
            if seqs > 1:
                seqs //= 2
            else:
                low *= 2
        high = self._apart(low, k1, LARGEST[1], lambda high: k1 * high)
        return [(seqs, low), (seqs, high)]

    def _apart(self, low: int, slope: float, most: int, peak) -> int:
        """The other end of a group: four times the first, more where the rounding asks for it."""

        def fits(high):
            return high <= most if self.room is None else peak(high) <= self.room

        high = 4 * low
        while (
            slope_error((low, high), self.error) > ROUNDING * slope
            and 2 * high <= most
            and fits(2 * high)
        ):
            high *= 2
        while high > 2 * low and not fits(high):
            high //= 2
        if (error := slope_error((low, high), self.error)) > ROUNDING * slope:
            self.notes.append(
                f"From {low:,} to {high:,} the rounding of the log leaves "
                f"{error / slope:.0%} of the slope open, by the estimate."
            )
        return high


def slope_error(places, error: float) -> float:
    """Standard error of a slope through readings at ``places``, each with the same ``error``."""
    design = np.column_stack([np.ones(len(places)), places])
    return float(least_squares(design, np.zeros(len(places)), error).covariance[1, 1] ** 0.5)


def _power(value: float) -> int:
    """The largest power of two that is not above it, at least 1."""
    return 2 ** max(0, math.floor(math.log2(value))) if value >= 1 else 1


@dataclass(frozen=True)
class Step:
    """The one next launch, None where none helps; standard errors of C* before and after it.

    ``stderr`` counts a k that is only assumed to be 0 as open up to 16 KiB a token. ``why`` is a
    sentence.
    """

    launch: NextLaunch | None
    why: str
    seqs: float | None = None
    stderr: float | None = None
    stderr_after: float | None = None

    @property
    def enough(self) -> bool:
        return self.launch is None and self.stderr is not None

    def to_dict(self) -> dict:
        return {
            "next": self.launch and vars(self.launch),
            "enough": self.enough,
            "why": self.why,
            "max_num_seqs": self.seqs,
            "max_num_seqs_stderr": self.stderr,
            "max_num_seqs_stderr_after": self.stderr_after,
        }


def next_launch(optimum: Optimum, least_budget: int = 1) -> Step:
    """The launch after which the error of C* is expected to be smallest.

    A reading y with the error s takes cov(C*, y)^2 / (var(y) + s^2) off the variance of C*,
    whatever it will show: the law is linear in its parameters. Launches with up to four times the answer's
    flags are tried that leave the pool a request and are clear of the bend. It is enough where the
    recommendation would gain less than a request, or than 0.1 %.
    """
    model = optimum.model
    if model.next_launches:
        first = model.next_launches[0]
        return Step(
            replace(first, max_num_batched_tokens=max(first.max_num_batched_tokens, least_budget)),
            f"It is not known yet: {first.why}.",
        )
    if optimum.max_num_seqs is None:
        return Step(None, f"No launch of these two flags would help: {optimum.reason}.")
    model = with_open_k(model)
    seqs, _ = point = optimum_of(model, optimum.workload.length)
    tried = [
        (_variance_after(model, seqs, *flags), *flags)
        for flags in _candidates(model, point, optimum.workload, least_budget)
    ]
    if not tried:
        return Step(None, "No launch tells more.", seqs.n, seqs.s)
    least = min(tried)[0]
    good = [each for each in tried if each[0] <= least + 0.05 * (seqs.s**2 - least)]
    variance, *flags = min(good, key=lambda each: _distance(each[1:], point))
    after = math.sqrt(variance)
    if NORMAL_95 * (seqs.s - after) < max(1.0, 0.001 * seqs.n):
        return Step(
            None,
            f"Enough: the best next launch, {serve_flags(*flags)}, would gain less "
            "than one request or 0.1 %.",
            seqs.n,
            seqs.s,
            after,
        )
    sampler = _branch(model, *flags)[0]
    why = "It shrinks the error of the recommendation most."
    if sampler and model.k_source == "assumed 0":
        why += " It tells k, the hidden states; --config config.json tells them without a launch."
    return Step(NextLaunch(*flags, GROUP_1 if sampler else GROUP_2), why, seqs.n, seqs.s, after)


def with_open_k(model: MemoryModel) -> MemoryModel:
    """The model with a k that is not just assumed to be 0, but open from 0 to 16 KiB a token.

    The sampler's launches measured a2 with their own hidden states in it: a larger k lowers it.
    """
    if model.k_source != "assumed 0" or not is_known(model.k2):
        return model
    most, known_at = open_k(model)
    k = ufloat(0.0, most / ROOT3)
    return replace(model, k=k, pool_at_zero_requests=model.pool_at_zero_requests + k * known_at)


def _candidates(model: MemoryModel, point, workload: Workload, least_budget: int):
    """Flags in powers of two that vLLM accepts, that leave a pool, and whose branch is certain."""
    launched = [fitted.launch for fitted in model.launches]
    most = [
        max(4 * value.n, max(getattr(launch, name) or 1 for launch in launched))
        for value, name in zip(point, ("max_num_seqs", "max_num_batched_tokens"))
    ]
    longest = max(workload.length, max(launch.max_model_len or 1 for launch in launched))
    least_seqs = 128 if point[0].n >= 128 else 2
    usual = min(
        (
            fitted.launch.max_num_batched_tokens
            for fitted in model.launches
            if fitted.branch == "sampler"
        ),
        default=SMALLEST,
    )
    for seqs in _powers(FEW, most[0]):
        for tokens in _powers(max(seqs, SMALLEST), most[1]):
            budget = max(tokens, least_budget)
            sampler, certain = _branch(model, seqs, budget)
            if sampler and (
                seqs < least_seqs or (not model.k.s and budget > max(seqs, usual, least_budget))
            ):
                continue  # group 1 keeps its budget, unless hidden states are to be measured
            if certain and model.pool(seqs, budget).n >= model.request_bytes(longest, budget):
                yield seqs, budget


def _powers(low: int, high: float):
    return (
        (2**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
        if high >= low
        else ()
    )


def _branch(model: MemoryModel, seqs: int, tokens: int) -> tuple[bool, bool]:
    """Whether the sampler sets the peak, and whether that is certain: by 3 standard errors."""
    by_model, by_sampler = model.pools(seqs, tokens)
    gap = by_model - by_sampler
    return gap.n > 0, abs(gap.n) > 3 * math.hypot(gap.s, model.unit)


def _variance_after(model: MemoryModel, wanted, seqs: int, tokens: int) -> float:
    """Variance of ``wanted`` once the launch is made, by the readings of the fit's own route."""
    pool = model.pool(seqs, tokens)
    reading = pool if model.route == "kv_only" else model.left_over - pool
    spread = max(1.0, model.chi2 / model.dof) if model.dof > 0 else 1.0
    (before, shared), (_, own) = covariance_matrix([wanted, reading])
    return before - shared**2 / (own + (model.unit / 2 / ROOT3) ** 2 * spread)


def _distance(flags, point) -> float:
    return sum(abs(math.log(flag / max(1.0, value.n))) for flag, value in zip(flags, point))
