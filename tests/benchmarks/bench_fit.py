"""A fit of 10,000 launches against numpy.linalg.lstsq on the same rows, their branches given."""

import numpy as np
from timing import compare

from vllm_tuning.branches import Readings, fit_branches
from vllm_tuning.law import peak_activation

if __name__ == "__main__":
    draw = np.random.default_rng(1)
    tokens = draw.integers(256, 16384, 10_000).astype(float)
    seqs = draw.integers(1, 1024, 10_000).astype(float)
    unit = 0.01 * 2**30
    law = {"k1": 150e3, "a1": 0, "k2": 3e6, "a2": 0, "k": 8192}
    peak = np.round(peak_activation(tokens, seqs, **law) / unit) * unit
    readings = Readings(
        tokens, seqs, peak, np.full(10_000, unit / 2 / 3**0.5), np.full(10_000, unit)
    )
    requests = np.minimum(seqs, tokens)
    sampler = law["k2"] * requests + law["k"] * tokens > law["k1"] * tokens
    design = np.column_stack(
        [~sampler, ~sampler * tokens, sampler, sampler * requests, sampler * tokens]
    ).astype(float)
    compare(
        "fit of 10,000 launches",
        lambda: fit_branches(readings),
        lambda: np.linalg.lstsq(design, peak, rcond=None),
        limit=20,
        turns=41,
    )
