"""Which four launches to make.

Each lies in its branch by a factor of 1.5, by the estimates of ``budget`` from the
model's shapes, and each group spans a factor of four:

    group 1, the sampler run:  mns C and 4C at mnbt 512;  C = max(128, 1.5*(K1 - k)*512/K2)
    group 2, the model run:    mnbt B and 4B at mns 16;   B = max(2048, 1.5*K2*16/(K1 - k))

C and B are rounded up to powers of two. 128 requests at least, because the sampler of releases
before 0.17 is steeper below. On vLLM's own profile runs over 16 grids of flags the answer from
these four is within 0.119 % of that from the whole grid (tests/benchmarks/bench_plan.py).
"""

import math
from dataclasses import dataclass

from ..budget import Server, capacity, profile_slopes
from ..diagnosis import GROUP_1, GROUP_2, NextLaunch
from ..kv_cache import ModelConfig
from ..law import peak_activation, refined_point
from ..units import InputError
from ..workload import Workload

LLAMA_3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
SURE = 1.5  # times the other branch's peak, above what both share
GROUP_1_AT, GROUP_1_FROM = 512, 128  # mnbt; the least mns
GROUP_2_AT, GROUP_2_FROM = 16, 2048  # mns; the least mnbt


@dataclass(frozen=True)
class Plan:
    """Launches to make, what could not be kept of the rule, and the answer by the estimates."""

    launches: tuple[NextLaunch, ...]
    notes: tuple[str, ...] = ()
    expected: tuple[float, float] | None = None

    def to_dict(self) -> dict:
        """JSON of ``plan``: ``expected`` is (mns, mnbt), null without a GPU and a length."""
        names = ("max_num_seqs", "max_num_batched_tokens")
        return {
            "launches": [vars(launch) for launch in self.launches],
            "notes": list(self.notes),
            "expected": self.expected and dict(zip(names, self.expected, strict=True)),
        }


def plan_launches(
    config=None, workload: Workload | None = None, chunked_prefill: bool = True, **flags
) -> Plan:
    """The first four launches for a model; without a config.json for the widths of a Llama 3 8B.

    ``flags`` are those of ``budget.capacity``: ``gpu_memory`` in bytes, ``max_model_len``,
    ``vllm_version`` and so on. Raises InputError.
    """
    found = capacity(config, lengths=(workload,) if workload else (), **flags) if config else None
    least = 1 if chunked_prefill else found.max_model_len if found else flags.get("max_model_len")
    if not least:
        raise InputError(
            "without chunked prefill max_num_batched_tokens is at least "
            "max_model_len: give that, or the model's config.json"
        )
    notes, expected, room = [], None, math.inf
    shapes = found.config if found else ModelConfig("Llama 3 8B", LLAMA_3_8B)
    k1, k2, k = _slopes(shapes, GROUP_1_FROM, flags)
    _, k2_of_few, _ = _slopes(shapes, GROUP_2_AT, flags)

    def peak(seqs, tokens):
        return peak_activation(tokens, seqs, k1, 0, k2, 0, k)

    if not found:
        notes.append("No config.json: the widths of a Llama 3 8B are taken, on whatever GPU.")
    elif found.budget and found.pool:
        activation = next(part for part in found.budget.parts if part.name == "activation")
        left_over, block = found.pool.value + activation.value, found.cache.block_bytes
        room = left_over - found.cache.request_blocks(found.max_model_len, 1) * block
        if workload and left_over > 0:
            blocks = found.cache.request_blocks(workload.length, found.max_num_batched_tokens)
            expected = refined_point(left_over, left_over, blocks * block, k1, k2, k)
        if room <= 0:
            notes.append(
                "By the estimate this GPU holds no request of max_model_len "
                f"{found.max_model_len:,}: vLLM would not start. Give a shorter --max-model-len."
            )
            room = math.inf

    budget = max(GROUP_1_AT, least)
    launches: list[NextLaunch] = []
    for low, at, why in (
        (
            max(GROUP_1_FROM, _power(SURE * (k1 - k) * budget / k2)),
            lambda seqs: (seqs, max(seqs, budget)),
            GROUP_1,
        ),
        (
            max(GROUP_2_FROM, _power(least), _power(SURE * k2_of_few * GROUP_2_AT / (k1 - k))),
            lambda tokens: (GROUP_2_AT, tokens),
            GROUP_2,
        ),
    ):
        high = 4 * low if peak(*at(4 * low)) <= room else 2 * low
        launches += [NextLaunch(seqs, tokens, why) for seqs, tokens in (at(low), at(high))]
        notes += [
            f"By the estimate {launch.flags} leave no room for a request of max_model_len."
            for launch in launches[-2:]
            if peak(launch.max_num_seqs, launch.max_num_batched_tokens) > room
        ]
    return Plan(tuple(launches), tuple(notes), expected)


def _slopes(shapes: ModelConfig, seqs: int, flags: dict) -> tuple[float, float, float]:
    """K1, K2, k at so many requests, by the estimates."""
    return profile_slopes(
        shapes,
        Server(
            total_memory=0,
            gpu_memory_utilization=1,
            max_num_seqs=seqs,
            max_num_batched_tokens=1,
            vllm_version=flags.get("vllm_version"),
        ),
    )


def _power(value: float) -> int:
    """The smallest power of two at or above it, at least 1."""
    return 2 ** math.ceil(math.log2(max(1, value)))
