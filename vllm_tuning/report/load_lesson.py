"""The carried load runs of a real server, for the lesson."""

import csv
from pathlib import Path

import numpy as np

from ..load import Verdict, check, longest_length, observed_request
from ..reading import DATA, ScrapeSeries, read_scrapes, read_source
from ..units import InputError
from .summary import Cell, Paragraph, Summary, Table

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


def lengths_table(verdict: Verdict) -> Summary:
    """What the histograms say of the finished requests' lengths, and how many fit."""
    series, request = verdict.series, observed_request(verdict.series)
    if request is None:
        none = "The scrapes hold no finished request, so its length is not known."
        return Summary(Paragraph(none))
    parts = [series.histogram(name) for name in ("prompt_length", "output_length")]
    means = [part.mean for part in parts if part and part.mean is not None]
    mean = round(sum(means)) if len(means) == 2 else None
    pool = verdict.server.pool(series)
    rows = [
        (name, length, pool.requests(int(length)) if pool and length else None, how)
        for name, length, how in (
            (Cell("mean", "measured"), mean, "sum / count"),
            (Cell("95th percentile", "estimated"), request.length, "buckets and mean"),
            (
                Cell("none is longer than", "measured"),
                longest_length(series),
                "upper ends of the buckets",
            ),
        )
    ]
    head = ("finished requests", "tokens", "fit the pool", "from")
    return Summary(Table(head, rows))
