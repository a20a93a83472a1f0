"""Throughput between load runs against held-out points of real sweeps over max_num_seqs.

    python tests/benchmarks/bench_throughput.py [FILE.csv]

A file has the columns model, running, output_tokens_per_s. The runs given are those nearest in the
logarithm to C, C/2 and C/8 with C the largest n of a sweep; judged are the points between them.
"""

import csv
import sys
from itertools import groupby
from pathlib import Path

import numpy as np

from vllm_tuning.reading import DATA, LoadRun, read_load_runs
from vllm_tuning.scheduler import (
    SchedulerConfig,
    StepTimes,
    fixed_requests,
    given_runs,
    simulate,
)
from vllm_tuning.workload import Workload

BARS = {"H100": (0.03, 0.08), "A10G": (0.04, 0.12)}


def rows_of(path):
    lines = Path(path).read_text().splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("#"))


def sweeps(path):
    for name, points in groupby(rows_of(path), lambda row: row["model"]):
        yield name, sorted((float(p["running"]), float(p["output_tokens_per_s"])) for p in points)


def judged(points):
    """(error of X, whether within 10 %) of the points left out, and the throughput given up."""
    runs = [LoadRun(*point) for point in points]
    n, x = map(np.array, zip(*points, strict=True))
    given = [runs.index(run) for run in given_runs(runs)]
    times = StepTimes(given_runs(runs))
    between = (n >= n[given].min()) & (n <= n[given].max())
    out = [i for i in np.flatnonzero(between) if i not in given]
    predicted = n / times(n)
    regret = 1 - x[between][np.argmax(predicted[between])] / x[between].max()
    return [predicted[i] / x[i] - 1 for i in out], regret


def score(path):
    errors, regrets = [], []
    for _, points in sweeps(path):
        if len(points) >= 4:
            found, regret = judged(points)
            errors += found
            regrets.append(regret)
    return np.array(errors), np.array(regrets)


def preempting(most=None):
    """(error of X, relative error of preemptions a request) of the A10G's servers that preempt."""
    work, folder = Workload(512, 128), DATA / "throughput"
    times = StepTimes(given_runs(read_load_runs([folder / "a10g.csv"])), work)
    found = []
    for row in list(rows_of(folder / "a10g-preempting.csv"))[:most]:
        seqs, budget, block, tokens = (
            int(row[name])
            for name in (
                "max_num_seqs",
                "max_num_batched_tokens",
                "block_size",
                "kv_cache_tokens",
            )
        )
        server = SchedulerConfig(
            seqs, budget, tokens // block, block_size=block, max_model_len=work.length
        )
        done = simulate(server, fixed_requests(1500, 512, 128), 300, step_time=times)
        ends = np.sort(done.times.finished)[[300, 1200]]
        real = float(row["output_tokens_per_s"])
        lost = float(row["preemptions_per_s"]) / (real / 128)
        rate = 900 * 128 / (ends[1] - ends[0])
        found.append((rate / real - 1, done.summary.n_preempt / 1500 / lost - 1))
    return np.array(found).T


def main(*paths):
    errors, lost = preempting()
    print(
        f"A10G, preempting, simulated: {len(errors)} servers: median "
        f"{np.median(abs(errors)):.1%}, 90th percentile {np.percentile(abs(errors), 90):.1%} (bar "
        f"6%, 15%); bias {np.mean(errors):+.1%} (bar 6%); preemptions a request off by "
        f"{np.median(abs(lost)):.0%} in the median (bar 20%)"
    )
    for path in paths or [DATA / f"throughput/{name}.csv" for name in ("a10g", "h100")]:
        errors, regrets = score(path)
        size = abs(errors)
        bar = next((each for name, each in BARS.items() if name.lower() in str(path)), None)
        print(
            f"{Path(path).name}: {len(errors)} points held out: median {np.median(size):.1%}, 90th "
            f"percentile {np.percentile(size, 90):.1%}"
            + (f" (bar {bar[0]:.0%}, {bar[1]:.0%})" if bar else "")
            + f"; {np.mean(size <= 0.1):.0%} within 10 %; bias {np.mean(errors):+.1%}; given up by "
            f"the best of the prediction {np.percentile(regrets, 90):.1%}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
