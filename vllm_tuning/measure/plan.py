"""The first four launches for a model, by the estimates of ``budget`` from its config.json."""

import math
from dataclasses import dataclass

from ..budget import capacity, expected_slopes
from ..diagnosis import NextLaunch, four_launches
from ..known import LLAMA_3_8B
from ..law import refined_point
from ..units import InputError
from ..workload import Workload

TWICE = (
    "Launch each twice and keep the second log: the first start of new flags compiles, and that "
    "hides what is to be measured (measure does so). With --enforce-eager once is enough."
)


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
    slopes = expected_slopes(found.config, flags.get("vllm_version")) if found else LLAMA_3_8B

    if not found:
        notes.append("No config.json: the widths of a Llama 3 8B are taken, on whatever GPU.")
    elif found.budget and found.pool:
        activation = next(part for part in found.budget.parts if part.name == "activation")
        left_over, block = found.pool.value + activation.value, found.cache.block_bytes
        room = left_over - found.cache.request_blocks(found.max_model_len, 1) * block
        if workload and left_over > 0:
            blocks = found.cache.request_blocks(workload.length, found.max_num_batched_tokens)
            expected = refined_point(
                left_over, left_over, blocks * block, slopes.k1, slopes.k2, slopes.k
            )
        if room <= 0:
            notes.append(
                "By the estimate this GPU holds no request of max_model_len "
                f"{found.max_model_len:,}: vLLM would not start. Give a shorter --max-model-len."
            )
            room = math.inf

    launches = four_launches(slopes, lambda *at: slopes.peak(*at) <= room, least)
    notes += [
        f"By the estimate {launch.flags} leave no room for a request of max_model_len."
        for launch in launches
        if slopes.peak(launch.max_num_seqs, launch.max_num_batched_tokens) > room
    ]
    notes.append(TWICE)
    return Plan(tuple(launches), tuple(notes), expected)
