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

from vllm_tuning.reading import DATA, LoadRun
from vllm_tuning.scheduler import StepTimes, given_runs

BARS = {"H100": (0.03, 0.08), "A10G": (0.04, 0.12)}


def sweeps(path):
    rows = csv.DictReader(
        line for line in Path(path).read_text().splitlines() if not line.startswith("#")
    )
    for name, points in groupby(rows, lambda row: row["model"]):
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


def main(*paths):
    for path in paths or sorted((DATA / "throughput").glob("*.csv")):
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
