"""What changed in which vLLM release, and the defaults that a release and a device decide.

One predicate a fact: True, False, or None where the release is unknown. A caller says what None
means to it: ``is not False`` takes an unknown release for a new one.
"""

import functools
import re

import numpy as np

from .units import GIB

DEFAULT_FLAGS = {160: (1024, 16384), 70: (1024, 8192), 0: (256, 2048)}  # from so many GiB on
SMALL_DEFAULTS = {"A100": (0, 9), "GB10": (0, 33)}  # GPUs that get the last pair from then on
SECOND_RUNNER = {  # families of dense models that model runner V2 is the default of, from then on
    "qwen3": (0, 22),
    "llama": (0, 23),
    "mistral": (0, 23),
}


@functools.cache
def release(version: str | None) -> tuple[int, ...]:
    """The numbers of a vLLM version: ``0.20.2rc1`` -> (0, 20, 2).

    () if unknown, as that of a checkout without tags: ``0.1.dev18496``.
    """
    if "0.1.dev" in (version or ""):
        return ()
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", version or "", re.ASCII)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _reaches(version: str | None, *first: int) -> bool | None:
    return release(version) >= first if release(version) else None


def charges_graph_estimate(version: str | None) -> bool | None:
    """Whether the estimate for CUDA graphs is taken off the KV cache pool."""
    return _reaches(version, 0, 20, 2)


def counts_consumed_memory(version: str | None) -> bool | None:
    """Whether N is all that stays allocated, less the weights; it was what torch does not hold."""
    return _reaches(version, 0, 28)


def has_second_runner(version: str | None) -> bool | None:
    """Whether the model runner can be V2, which a log names; on CUDA it always is from 0.30 on."""
    return _reaches(version, 0, 22)


def runs_second_runner(version: str | None, family: str = "", plain: bool = True) -> bool | None:
    """Whether model runner V2 is the default on CUDA for a model that no log names one of.

    ``plain``: dense, and all its layers keep keys and values. Read in the releases' sources.
    """
    first = SECOND_RUNNER.get(family, (0, 25)) if plain else (0, 30)
    return _reaches(version, *first)


def runs_first_engine(version: str | None, gpu: str | None = None) -> bool:
    """Whether the engine is V0: up to 0.7, and on GPUs older than Ampere as long as there was V0.

    It does not chunk prefill up to 32,768 tokens: a step then holds max_model_len.
    """
    old = (gpu or "").startswith(("V100", "T4"))
    return _reaches(version, 0, 11 if old else 8) is False


def prints_tokens_by_concurrency(version: str | None) -> bool | None:
    """Whether "KV cache size" is int(concurrency * max_model_len), not blocks * block size."""
    return _reaches(version, 0, 20, 2)


def caches_states(version: str | None, asked: bool | None = None) -> bool:
    """Whether prefix caching keeps one more recurrent state of a request (mamba_cache_mode align).

    On request from 0.17 on, by default from 0.26 on.
    """
    if _reaches(version, 0, 17) is False:
        return False
    return _reaches(version, 0, 26) is not False if asked is None else asked


def prints_activation(version: str | None) -> bool | None:
    """Whether a log can hold the peak activation: V1 from 0.9.1 on, V0 from 0.6.4 on."""
    return _reaches(version, 0, 6, 4) and not (0, 8) <= release(version) < (0, 9, 1)


def samples_by_triton(version: str | None) -> bool | None:
    """Whether the sampler is a Triton kernel; it sorted all logits before."""
    return _reaches(version, 0, 17)


def samples_twice(version: str | None) -> bool | None:
    """Whether the sampler of runner V2 holds the logits once more."""
    return _reaches(version, 0, 33)


def keeps_expert_workspace(version: str | None) -> bool | None:
    """Whether the buffers of fused experts stay while the sampler runs."""
    return _reaches(version, 0, 17)


def has_larger_context(version: str | None) -> bool | None:
    """Whether one GPU alone shows about 0.26 GiB of non-torch memory, not 0.07 GiB."""
    return _reaches(version, 0, 17)


def has_other_samplers(version: str | None) -> bool | None:
    """Whether the sampler is newer than those that ``budget/estimates.py`` was fitted on."""
    return _reaches(version, 0, 20)


def captured_sizes(max_num_seqs):
    """How many batch sizes CUDA graphs are captured for by default: 1, 2, 4, each 8th up to 256,
    each 16th up to 512, none above 2*C.

    >>> [int(captured_sizes(seqs)) for seqs in (16, 128, 1024)]
    [7, 35, 51]
    """
    largest = np.minimum(2 * max_num_seqs, 512)
    few = sum(size <= largest for size in (1, 2, 4))
    return few + np.minimum(largest, 256) // 8 + np.maximum(0, largest - 256) // 16


def default_utilization(version: str | None) -> float:
    """--gpu-memory-utilization where it is not given; an unknown release counts as a new one."""
    return 0.9 if _reaches(version, 0, 20, 2) is False else 0.92


def default_flags(
    total_memory: float,
    gpu: str | None = None,
    version: str | None = None,
    max_model_len: int | None = None,
) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that ``vllm serve`` takes where neither is given.

    total_memory: bytes of one GPU; ``gpu``: its name, for those of ``SMALL_DEFAULTS``; without a
    release as of vLLM 0.33 (``EngineArgs`` in ``vllm/engine/arg_utils.py`` of 0.8 to 0.33).

    >>> default_flags(79.19 * GIB), default_flags(23.58 * GIB)
    ((1024, 8192), (256, 2048))
    """
    if runs_first_engine(version, gpu):
        whole = max_model_len or 0  # beyond, prompts are chunked
        return 256, max(2048, whole if whole <= 32768 else 0)
    size = total_memory / GIB
    for name, first in SMALL_DEFAULTS.items():
        if (gpu or "").startswith(name) and _reaches(version, *first) is not False:
            size = 0.0
    if _reaches(version, 0, 28) is False:  # the first pair is newer
        size = min(size, 159)
    return next(flags for smallest, flags in DEFAULT_FLAGS.items() if size >= smallest)


def default_seqs(max_num_batched_tokens: int | None) -> int | None:
    """The default max_num_seqs beside a default token budget; None where it is no default."""
    pairs = DEFAULT_FLAGS.values()
    return next((seqs for seqs, tokens in pairs if tokens == max_num_batched_tokens), None)
