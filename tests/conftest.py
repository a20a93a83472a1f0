"""What several tests share: the real measurements, read without the code under test."""

import csv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


def rows_of(path):
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    return list(csv.DictReader(lines))


@pytest.fixture(scope="session")
def grid():
    """The measured peaks of vLLM's profile run: tokens, requests, bytes."""
    rows = rows_of(ROOT / "data/vllm-0.32-profile-grid/launches.csv")
    return {"tokens": np.array([float(row["max_num_batched_tokens"]) for row in rows]),
            "seqs": np.array([float(row["max_num_seqs"]) for row in rows]),
            "peak": np.array([float(row["peak_activation_gib"]) * 2**30 for row in rows])}


@pytest.fixture(scope="session")
def exact_launches():
    """Exact bytes of the two-layer model's launches, from vLLM's own accounting."""
    return [{name: int(value) for name, value in row.items()}
            for row in rows_of(ROOT / "tests/data/llama-3-8b-2-layers-bytes.csv")]
