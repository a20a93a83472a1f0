"""A few launches around the answer, for ``vllm bench sweep serve --serve-params FILE``."""

import json
import os

from ..optimum import Optimum
from ..pool import Pool
from ..reading import write_whole
from ..units import InputError
from ..workload import Workload


def sweep_points(optimum: Optimum) -> dict[str, tuple[int, int]]:
    """(mns, mnbt) of the recommendation and of what may beat it, by name, each pair once.

    Fewer requests: each is served faster. More, up to pool / (input + output / 2): they are rarely
    all full at once. A budget twice as large: prompts are read in fewer steps.
    Raises InputError where there is no recommendation.
    """
    best, work = optimum.recommended, optimum.workload
    if best is None or optimum.max_num_seqs is None:
        raise InputError(f"no recommendation to sweep around: {optimum.reason}")
    seqs, budget = best.max_num_seqs, best.max_num_batched_tokens
    pool = Pool(optimum.model, work, 1)
    half_way = Pool(optimum.model, Workload(work.input_len, (work.output_len + 1) // 2), 1)
    most = max(
        seqs,
        half_way.most_requests(lambda c: max(budget, half_way.largest_free_token_budget(c))),
    )
    between = (seqs + most + 1) // 2
    points = {
        "recommended": (seqs, budget),
        "fewer-requests": (max(1, seqs * 3 // 4), budget),
        "between": (between, max(budget, pool.largest_free_token_budget(between))),
        "half-full-on-average": (most, max(budget, pool.largest_free_token_budget(most))),
    }
    if fit := pool.most_requests(lambda _: 2 * budget):
        points["larger-steps"] = min(fit, 2 * budget), 2 * budget
    first = {point: name for name, point in reversed(points.items())}
    return {name: point for name, point in points.items() if first[point] == name}


def write_sweep(path: str | os.PathLike, optimum: Optimum) -> None:
    """Write the points as vLLM reads them. Raises InputError where there is no recommendation."""
    points = {
        name: {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        for name, (seqs, budget) in sweep_points(optimum).items()
    }
    write_whole(path, json.dumps(points, indent=2) + "\n")
