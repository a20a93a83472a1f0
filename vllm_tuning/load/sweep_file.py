"""A few launches around the answer for vLLM's own tuners, where memory does not decide.

``vllm bench sweep serve --serve-params FILE`` takes the points as they are. auto_tune.sh takes two
lists and tries all pairs, so these are cut to pairs at which requests fit.
"""

import json
import os
import shlex
from pathlib import Path

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
    best, pool, half_way = _pools(optimum)
    seqs, budget = best.max_num_seqs, best.max_num_batched_tokens
    most = max(seqs, half_way.most_requests(half_way.largest_free_token_budget))
    between = (seqs + most + 1) // 2
    points = {
        "recommended": (seqs, budget),
        "fewer-requests": (max(1, seqs * 3 // 4), budget),
        "between": (between, max(budget, pool.largest_free_token_budget(between))),
        "half-full-on-average": (most, max(budget, pool.largest_free_token_budget(most))),
    }
    if fit := pool.most_requests(lambda _: 2 * budget):
        points["larger-steps"] = min(fit, 2 * budget), 2 * budget
    once = {point: name for name, point in reversed(points.items())}
    return {name: point for name, point in points.items() if once[point] == name}


def tuner_lists(optimum: Optimum) -> tuple[list[int], list[int]]:
    """(mns, mnbt) for auto_tune.sh, ascending: beside each budget requests fit half way through.

    The script starts with the largest of both to find the utilization. Raises InputError.
    """
    best, _, half_way = _pools(optimum)
    seqs, budget = best.max_num_seqs, best.max_num_batched_tokens
    top = half_way.most_requests(lambda _: 2 * budget)
    budgets = [budget, 2 * budget] if top >= seqs else [budget]
    top = max(seqs, min(top if top >= seqs else half_way.most_requests(lambda _: budget), budget))
    return sorted({seqs, (seqs + top + 1) // 2, top}), budgets


def write_sweep(path: str | os.PathLike, optimum: Optimum) -> Path:
    """Write the parameter file, and beside it NAME.env for auto_tune.sh, whose path it gives."""
    path = Path(path)
    points = {
        name: {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        for name, (seqs, budget) in sweep_points(optimum).items()
    }
    environment = path.with_suffix(".env")
    if environment == path:
        raise InputError(f"{path}: is the name of the other file; name the sweep *.json")
    text = tuner_environment(optimum)
    write_whole(path, json.dumps(points, indent=2) + "\n")
    write_whole(environment, text)
    return environment


def tuner_environment(optimum: Optimum) -> str:
    """What auto_tune.sh reads from its environment, as shell lines."""
    seqs, budgets = tuner_lists(optimum)
    launches = [fitted.launch for fitted in optimum.model.launches]

    def common(name, default=None):
        values = {value for launch in launches if (value := getattr(launch, name))}
        return values.pop() if len(values) == 1 else default

    variables = {
        "MODEL": common("model"),
        "TP": common("tensor_parallel_size", 1),
        "INPUT_LEN": optimum.workload.input_len,
        "OUTPUT_LEN": optimum.workload.output_len,
        "MAX_MODEL_LEN": max(common("max_model_len", 0), optimum.workload.length),
        "NUM_SEQS_LIST": " ".join(map(str, seqs)),
        "NUM_BATCHED_TOKENS_LIST": " ".join(map(str, budgets)),
    }
    return "\n".join(
        (
            f"# {len(seqs) * len(budgets)} launches to benchmark, and two of the script's own: one or",
            "# more to find the utilization (from 0.98 down, so the pool is not that of the launches),",
            "# one to profile the best. In a copy that sets these itself, write them over its lines.",
            *(
                f"export {name}={shlex.quote(str(value))}"
                for name, value in variables.items()
                if value is not None
            ),
            "",
        )
    )


def _pools(optimum: Optimum):
    """The recommendation, the pool for full requests, and for requests half way through."""
    if optimum.recommended is None:
        raise InputError(f"no recommendation to sweep around: {optimum.reason}")
    work = optimum.workload
    half = Workload(work.input_len, (work.output_len + 1) // 2)
    return optimum.recommended, Pool(optimum.model, work, 1), Pool(optimum.model, half, 1)
