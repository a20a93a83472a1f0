"""A fit of 10,000 launches against numpy.linalg.lstsq on the same rows, their branches given."""

import numpy as np
from timing import compare
from uncertainties import ufloat

from vllm_tuning.branches import fit_branches
from vllm_tuning.known import Known
from vllm_tuning.law import peak_activation
from vllm_tuning.readings import Readings
from vllm_tuning.units import MIB, UNKNOWN, exact

if __name__ == "__main__":
    draw = np.random.default_rng(1)
    tokens = draw.integers(256, 16384, 10_000).astype(float)
    seqs = draw.integers(1, 1024, 10_000).astype(float)
    unit = 0.01 * 2**30
    law = {"k1": 150e3, "a1": 0, "k2": 3e6, "a2": 0, "k": 8192}
    peak = np.round(peak_activation(tokens, seqs, **law) / unit) * unit
    every = np.full(10_000, unit)
    printed = every / 2 / 3**0.5
    readings = Readings(tokens, seqs, 0 * tokens, peak, printed, np.hypot(printed, 6 * MIB), every)
    known = Known(ufloat(8192, 4980), exact(0), UNKNOWN, intercepts=25 * 2 * MIB)
    requests = np.minimum(seqs, tokens)
    sampler = law["k2"] * requests + law["k"] * tokens > law["k1"] * tokens
    design = np.column_stack(
        [~sampler, ~sampler * tokens, sampler, sampler * requests, sampler * tokens]
    ).astype(float)
    compare(
        "fit of 10,000 launches",
        lambda: fit_branches(readings, known),
        lambda: np.linalg.lstsq(design, peak, rcond=None),
        limit=20,
        turns=41,
    )
