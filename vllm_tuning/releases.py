"""What changed in which vLLM release, and the defaults that a release and a device decide."""

import functools
import re

from .units import GIB


@functools.cache
def release(version: str | None) -> tuple[int, ...]:
    """The numbers of a vLLM version: ``0.20.2rc1`` -> (0, 20, 2).

    () if unknown, as that of a checkout without tags: ``0.1.dev18496``.
    """
    if "0.1.dev" in (version or ""):
        return ()
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", version or "", re.ASCII)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def default_flags(total_memory) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that ``vllm serve`` takes where neither is given.

    total_memory: bytes of one GPU. 1024 / 16384 from 160 GiB, 1024 / 8192 from 70 GiB, else
    256 / 2048, as of vLLM 0.33 (``EngineArgs.get_batch_defaults`` in ``vllm/engine/arg_utils.py``).
    A100 and GB10 take 256 / 2048 whatever their size, which the memory alone does not tell.

    >>> default_flags(79.19 * GIB), default_flags(23.58 * GIB)
    ((1024, 8192), (256, 2048))
    """
    if total_memory >= 160 * GIB:
        return 1024, 16384
    return (1024, 8192) if total_memory >= 70 * GIB else (256, 2048)
