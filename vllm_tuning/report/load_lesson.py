"""The carried load runs of a real server, for the lesson."""

import csv
from pathlib import Path

import numpy as np
from IPython.display import Markdown

from ..load import Verdict, check, longest_length, observed_request
from ..reading import DATA, ScrapeSeries, read_scrapes, read_source
from ..units import InputError

FOLDER = DATA / "load"


def verdict_of_run(metrics: str, launches: str = "") -> Verdict:
    """The verdict on a carried run (``mns24``) with its launch, or on scrapes and launches of your
    own. Raises InputError."""
    scrapes = Path(metrics)
    carried = FOLDER / f"{metrics}.prom"
    if scrapes.name == metrics and carried.is_file():
        scrapes, launches = carried, launches or str(carried.with_suffix(".csv"))
    elif not scrapes.exists():
        names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.prom")))
        raise InputError(f"{metrics}: no such file or folder; carried runs: {names}")
    return check(
        ScrapeSeries(tuple(read_scrapes([scrapes]))), read_source(launches) if launches else []
    )


def burst_runs() -> np.ndarray:
    """The carried runs of one burst that differ in max_num_seqs only, as a record array."""
    with (FOLDER / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if line[0] != "#"))
    names = ("max_num_seqs", "preemptions", "steps", "tokens_per_step", "kv_cache_usage_peak")
    kept = [
        tuple(float(row[name]) for name in names)
        for row in rows
        if row["run"].startswith("fix") and row["run"].endswith("_mnbt2048")
    ]
    return np.sort(np.array(kept, dtype=[(name, float) for name in names]), order="max_num_seqs")


def lengths_table(verdict: Verdict) -> Markdown:
    """What the histograms say of the finished requests' lengths, and how many fit."""
    series, request = verdict.series, observed_request(verdict.series)
    if request is None:
        return Markdown("The scrapes hold no finished request, so its length is not known.")
    parts = [series.histogram(name) for name in ("prompt_length", "output_length")]
    means = [part.mean for part in parts if part and part.mean is not None]
    pool = verdict.server.pool(series)
    lines = [
        "| length of a finished request | tokens | fit in the pool | |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, length, how in (
        ("mean", sum(means) if len(means) == 2 else None, "measured: sum / count"),
        ("95th percentile", request.length, "estimated: buckets and mean"),
        ("none is longer than", longest_length(series), "measured: upper ends of the buckets"),
    ):
        tokens = f"{length:,.0f}" if length else "?"
        fit = f"{pool.requests(int(length)):,}" if pool and length else "?"
        lines.append(f"| {name} | {tokens} | {fit} | {how} |")
    return Markdown("\n".join(lines))
