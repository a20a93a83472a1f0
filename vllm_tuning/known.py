"""What is known of a model and its server before the launches are fitted, with its error."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from uncertainties import UFloat, ufloat

from .launch import UNBALANCED, Launch, first_known
from .law import peak_activation, penalty_state_bytes
from .readings import granule, rounding
from .releases import charges_graph_estimate, has_second_runner, samples_by_triton
from .units import MIB, NORMAL_95, UNKNOWN, exact

LARGEST_ASSUMED_K = 20480  # bytes; those of a 70B model are 16,384
SORT_BEND = 12  # bytes per vocabulary entry and request of `law.bend`, at most
VOCABULARIES = 32_000, 300_000  # from the smallest to beyond the largest in use, 262,144
GRAPHS = 9 * MIB  # a size that is captured; 5 to 17 seen
EQUAL_INTERCEPTS = 25  # granules: a1 and a2 of an A10G are 46 MiB apart
RATIO = math.log(21), 1.1  # ln(K2 / (K1 - k)), tokens a request: a Llama 3 8B, and others about it
NOTHING = exact(0)


class Slopes(NamedTuple):
    """K1, K2, K2 of few requests, and k, bytes, as a model's shapes let one expect them."""

    k1: float
    k2: float
    k2_of_few: float
    k: float

    def peak(self, seqs: int, tokens: int) -> float:
        """P(B, C) without intercepts, bytes."""
        return float(peak_activation(tokens, seqs, self.k1, 0, self.k2, 0, self.k))


LLAMA_3_8B = Slopes(147_456, 1_940_000, 1_940_000, 8192)  # without the compiler; 0.17 and later


@dataclass(frozen=True)
class Known:
    """What is known beside the launches, uncertain numbers in bytes (NaN: nothing).

    ``graph``: of each size that CUDA graphs are captured for, where their estimate was charged to
    the pool and is not on record; ``few``: of each request of ``bend`` where the sampler sorts.
    ``intercepts``: standard error of a1 - a2, inf where the compiler ran inside the profile.
    ``ratio``: ln(K2 / (K1 - k)), tokens a request, by the model's shapes, and its error; ``k2``:
    ln(K2) likewise, where config.json gives it.
    """

    k: UFloat
    s: UFloat
    total_memory: UFloat
    graph: UFloat = NOTHING
    few: UFloat = NOTHING
    intercepts: float = math.inf
    ratio: tuple[float, float] = RATIO
    k2: tuple[float, float] | None = None


def known_beside(
    launches: list[Launch],
    hidden_state_bytes: float | None = None,
    most_hidden_state_bytes: float | None = None,
    vocab_size: int | None = None,
    slopes: Slopes | None = None,
) -> Known:
    """What the records of the launches and a config.json say of k, s, TM, K1 and K2.

    hidden_state_bytes: k of the model, and what it can be at most where more stays alive (the
    output of an encoder, workspaces of experts); slopes: as its shapes let one expect.
    """
    ratio, k2, few = RATIO, None, NOTHING
    sorts = samples_by_triton(launches[0].vllm_version) is False
    if sorts:
        few = _between(0, SORT_BEND * VOCABULARIES[1])
    if slopes:  # the sampler's kernels differ; the one that sorts has one cost
        k2 = math.log(slopes.k2), 0.15 if sorts else 0.5
        if sorts:
            few = _between(0, 2 * (slopes.k2_of_few - slopes.k2))
        if launches[0].cuda_graph == 0:  # the compiler makes K1 smaller, by how much is not known
            ratio = math.log(slopes.k2 / (slopes.k1 - slopes.k)), 0.5
    if hidden_state_bytes is None:
        k = _between(0, LARGEST_ASSUMED_K)
    else:
        k = _between(hidden_state_bytes, most_hidden_state_bytes or hidden_state_bytes)
    compiled = any(launch.cold_start for launch in launches)
    return Known(
        k=k,
        s=_state(launches, vocab_size),
        total_memory=_total_memory(launches),
        graph=_graphs(launches),
        few=few,
        intercepts=math.inf if compiled else EQUAL_INTERCEPTS * max(map(granule, launches)),
        ratio=ratio,
        k2=k2,
    )


def _between(low: float, high: float) -> UFloat:
    """A value somewhere between two, which its one-sided 95 % bounds reach."""
    return ufloat((low + high) / 2, (high - low) / 2 / NORMAL_95) if high > low else exact(low)


def _state(launches: list[Launch], vocab_size: int | None) -> UFloat:
    """s of the runner: 0 under V1, by the vocabulary under V2; where the runner is not known 0,
    with an error that reaches V2's."""
    runner = first_known(launches, "model_runner")
    if runner == "V1" or (runner is None and not has_second_runner(launches[0].vllm_version)):
        return exact(0)
    if vocab_size:
        full = exact(penalty_state_bytes(vocab_size))
    else:
        full = _between(*map(penalty_state_bytes, VOCABULARIES))
    return full if runner == "V2" else ufloat(0, 0.6 * full.n)


def _graphs(launches: list[Launch]) -> UFloat:
    """The estimate for CUDA graphs, a size, where it was charged and is not on record."""
    lacking = any(
        launch.cuda_graph_estimated is None
        and launch.cuda_graph != 0
        and launch.cuda_graph_charged is not False
        and charges_graph_estimate(launch.vllm_version) is not False
        and not launch.exact
        and not _closes(launch)
        for launch in launches
    )
    return ufloat(0, GRAPHS) if lacking else NOTHING


def _closes(launch: Launch) -> bool:
    """Whether the pool is what is left without graphs: TM*U - M - N - P, within its rounding."""
    left, peak, pool = launch.left_over, launch.peak_activation, launch.kv_cache
    if left is None or peak is None or pool is None:
        return False
    return abs(left - peak - pool) < UNBALANCED


def _total_memory(launches: list[Launch]) -> UFloat:
    total = [launch.total_memory for launch in launches if launch.total_memory is not None]
    return ufloat(total[-1], float(rounding(np.array(total))[-1])) if total else UNKNOWN
