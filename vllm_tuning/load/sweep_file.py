"""A few launches around the answer, for ``vllm bench sweep serve --serve-params FILE``."""

import json
import os

from ..optimum import Optimum
from ..reading import write_whole
from ..scheduler import runs_to_make
from ..units import InputError


def sweep_points(optimum: Optimum) -> dict[str, tuple[int, int]]:
    """(mns, mnbt) of the recommendation, C, and of C/2 and C/8 by name, each pair once.

    More requests than C are no point: on real GPUs they lose 10 to 24 %. Raises InputError where
    there is no recommendation.
    """
    best = optimum.recommended
    if best is None or optimum.max_num_seqs is None:
        raise InputError(f"no recommendation to sweep around: {optimum.reason}")
    names = ("recommended", "half", "eighth")
    loads = runs_to_make(best.max_num_seqs)[::-1]
    return dict(zip(names, ((seqs, best.max_num_batched_tokens) for seqs in loads), strict=False))


def write_sweep(path: str | os.PathLike, optimum: Optimum) -> None:
    """Write the points as vLLM reads them. Raises InputError where there is no recommendation."""
    points = {
        name: {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        for name, (seqs, budget) in sweep_points(optimum).items()
    }
    write_whole(path, json.dumps(points, indent=2) + "\n")
