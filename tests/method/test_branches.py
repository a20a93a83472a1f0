"""The fit against NIST's certified line and against the real vLLM's peaks."""

import math
import random

import numpy as np
import pytest
from conftest import ROOT
from uncertainties import ufloat

from vllm_tuning.branches import fit_branches
from vllm_tuning.known import Known
from vllm_tuning.law import peak_activation
from vllm_tuning.least_squares import least_squares
from vllm_tuning.readings import Readings
from vllm_tuning.units import GIB, MIB, UNKNOWN, exact

HIDDEN = 512.0  # 256 hidden x 2 bytes


K_UNKNOWN = ufloat(8192, 4730)


def fitted(readings, k=K_UNKNOWN, intercepts=math.inf):
    """The most probable split, by what is known beside the readings: k, and a1 - a2."""
    return fit_branches(readings, Known(k, exact(0), UNKNOWN, intercepts=intercepts))[0]


def error(split, name, sigma):
    """Standard error of a parameter, from the readings and from what was known before."""
    gain, known = (part[split.fitted.index(name)] for part in (split.gain, split.known_gain))
    return math.sqrt(np.sum((gain * sigma) ** 2) + np.sum((known * split.known_errors) ** 2))


def readings(grid, which=slice(None)):
    peak = grid["peak"][which]
    return Readings(
        grid["tokens"][which],
        grid["seqs"][which],
        np.zeros(len(peak)),
        peak,
        np.full(len(peak), 0.5 / 3**0.5),
        np.full(len(peak), 0.5 / 3**0.5),
        np.ones(len(peak)),
    )


def test_nist_norris_to_ten_digits():
    text = (ROOT / "tests/data/nist-norris.csv").read_text()
    data = np.array(
        [line.split(",") for line in text.splitlines() if line[0] not in "#x"], dtype=float
    )
    x, y = data.T
    fit = least_squares(np.column_stack([np.ones(36), x]), y)
    variance = fit.chi2 / fit.dof
    assert fit.params == pytest.approx([-0.262323073774029, 1.00211681802045], rel=1e-10)
    assert np.sqrt(variance * np.diag(fit.covariance)) == pytest.approx(
        [0.232818234301152, 0.429796848199937e-03], rel=1e-10
    )
    assert variance**0.5 == pytest.approx(0.884796396144373, rel=1e-10)


def test_gain_maps_readings_to_parameters():
    design = np.column_stack([np.ones(4), [1.0, 2, 3, 5]])
    fit = least_squares(design, np.array([3.0, 5, 7, 11]), np.array([1.0, 2, 1, 3]))
    assert fit.params == pytest.approx([1, 2])
    assert fit.gain @ np.array([3.0, 5, 7, 11]) == pytest.approx([1, 2])
    assert fit.gain @ np.diag([1.0, 4, 1, 9]) @ fit.gain.T == pytest.approx(fit.covariance)


def test_dependent_columns_are_an_error():
    with pytest.raises(np.linalg.LinAlgError):
        least_squares(np.column_stack([np.ones(3), np.full(3, 512.0)]), np.arange(3.0))


def test_law_by_hand():
    assert peak_activation(512, 16, k1=10, a1=5, k2=100, a2=7, k=2) == 10 * 512 + 5
    assert peak_activation(512, 600, k1=10, a1=5, k2=100, a2=7, k=2) == 7 + 100 * 512 + 2 * 512


def test_all_rows_of_the_real_profile_run(grid):
    split = fitted(readings(grid))
    truth = {"k1": 10240, "k2": 769068, "k": 512}
    assert {name: split.params[name] for name in truth} == pytest.approx(truth, rel=1e-6)
    assert abs(split.predicted - grid["peak"]).max() < 1


def test_any_four_launches_that_identify_the_slopes_predict_the_held_out_rows(grid):
    in_sampler = (
        769068 * np.minimum(grid["seqs"], grid["tokens"]) + 512 * grid["tokens"]
        > 10240 * grid["tokens"]
    )
    draw, tried = random.Random(7), 0
    while tried < 300:
        four = np.array(draw.sample(range(len(in_sampler)), 4))
        seqs = grid["seqs"][four][in_sampler[four]]
        tokens = grid["tokens"][four][~in_sampler[four]]
        if len(set(seqs)) < 2 or len(set(tokens)) < 2:
            continue
        tried += 1
        split = fitted(readings(grid, four), exact(HIDDEN), 13e3)
        law = {name: split.params[name] for name in ("k1", "a1", "k2", "a2", "k")}
        predicted = peak_activation(grid["tokens"], grid["seqs"], **law)
        assert predicted == pytest.approx(grid["peak"], rel=1e-3), four


def synthetic(pairs, peak, unit=0.01 * GIB):
    """Readings of a law in bytes, printed to a unit."""
    tokens, seqs = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    y, every = np.round(peak(tokens, seqs) / unit) * unit, np.full(len(tokens), unit)
    sigma = np.hypot(every / 2 / 3**0.5, 6 * MIB)  # the scatter of real GPUs about the law
    return Readings(tokens, seqs, np.zeros(len(y)), y, every / 2 / 3**0.5, sigma, every)


def test_one_branch_only_is_left_one_branch():
    pairs = [(1024 * n, 64) for n in range(1, 9)]
    split = fitted(synthetic(pairs, lambda b, c: 0.1 * GIB + 1e6 * b), intercepts=50e6)
    assert not split.sampler.any() and split.params["k1"] == pytest.approx(1e6, rel=0.02)


def test_launches_off_by_rounding_make_no_branch():
    pairs = [(16384, 128), (32768, 128), (65536, 128), (81920, 128)]
    pools = np.array([11.32, 9.64, 6.24, 4.53])
    assert not fitted(synthetic(pairs, lambda b, c: -pools * GIB), intercepts=50e6).sampler.any()


def test_three_hundred_launches_with_both_branches():
    draw = np.random.default_rng(3)
    pairs = list(zip(draw.integers(256, 16384, 300), draw.integers(1, 512, 300), strict=True))
    law = {"k1": 1e5, "a1": 20e6, "k2": 3e6, "a2": 50e6, "k": 10e3}
    seen = synthetic(pairs, lambda b, c: peak_activation(b, c, **law))
    split = fitted(seen)
    for name, true in law.items():
        assert split.params[name] == pytest.approx(true, abs=4 * error(split, name, seen.sigma))
    assert split.chi2 < 2 * 300


def test_both_branches_are_found_over_many_random_laws():
    """Figures rounded to 0.01 GiB: the slope is within its error, nearly always."""
    draw, inside = np.random.default_rng(11), 0
    for _ in range(200):
        k1 = draw.uniform(5e4, 4e5)
        k2 = draw.uniform(5, 30) * k1  # the sampler's branch holds both launches at 512 tokens
        pairs = [(512, 128), (512, 512), (2048, 16), (16384, 16)]
        law = (k1, 0, k2, 0, 0)
        seen = synthetic(pairs, lambda b, c, law=law: peak_activation(b, c, *law))
        split = fitted(seen, exact(0), 50e6)
        inside += {"k1", "k2"} <= split.params.keys() and all(
            abs(split.params[name] - true) < 2.5 * error(split, name, seen.sigma)
            for name, true in (("k1", k1), ("k2", k2))
        )
    assert inside >= 190


def test_a_launch_where_both_runs_meet_does_not_bend_a_slope():
    """The launch at (256, 8192) is in the model's branch; taken for the sampler's it halves K2."""
    law = {"k1": 374e3, "a1": 0, "k2": 2.87e6, "a2": 0, "k": 16384}
    pairs = [(8192, 256), (2048, 1024), (4096, 1024), (4096, 16), (16384, 16)]
    seen = synthetic(pairs, lambda b, c: peak_activation(b, c, **law))
    split = fitted(seen, intercepts=50e6)
    assert list(split.sampler) == [False, True, True, False, False]
    assert split.assumed == "k2"  # both launches of that branch have 1,024 requests
    assert split.params["k2"] == pytest.approx(2.87e6, abs=2 * error(split, "k2", seen.sigma))
    assert split.params["k"] == pytest.approx(16384, abs=2 * error(split, "k", seen.sigma))


@pytest.mark.parametrize(
    "k1, k2, pairs, peaks",
    [
        (
            1.852e-4,
            6.4943e-3,
            [(8192, 512), (2048, 256), (1024, 128), (4096, 128)],
            [4.05, 1.84, 0.92, 1.19],
        ),
        (
            2.947e-4,
            6.7453e-3,
            [(2048, 16), (4096, 256), (4096, 256), (1024, 256), (512, 128)],
            [0.6, 2.08, 2.08, 1.82, 0.91],
        ),
        (
            2.388e-4,
            5.9990e-3,
            [(2048, 16), (512, 512), (4096, 256), (512, 512), (1024, 128)],
            [0.49, 3.13, 1.97, 3.13, 0.88],
        ),
    ],
)
def test_intercepts_far_apart_come_last(k1, k2, pairs, peaks):
    """Peaks in GiB of a law without intercepts, and a k that is not given: no slope is wrong.

    Another assignment with the branches far apart at 0 explains each of these to the digit, too.
    """
    seen = synthetic(pairs, lambda b, c: np.array(peaks) * GIB)
    split = fitted(seen, intercepts=50e6)
    for name, true in (("k1", k1 * GIB), ("k2", k2 * GIB)):
        if name in split.params:
            off = max(0.02 * true, 3 * error(split, name, seen.sigma))
            assert split.params[name] == pytest.approx(true, abs=off)


def test_where_two_splits_explain_the_launches_the_shapes_decide():
    """Five launches of an H200, Llama 70B FP8, as printed (0.14.1), moved to one utilization.

    Either 128/8192 lies in the sampler's branch (K2 3.88 MB) or in the model's (4.92 MB). The
    sampler of that release takes 38.7 bytes x the vocabulary of 128,256.
    """
    pairs = [(8192, 1024), (16384, 1024), (8192, 128), (16384, 128)]
    pools = np.array([53.15, 53.02, 56.39, 54.80]) * GIB
    known = Known(
        exact(16384), exact(0), UNKNOWN, intercepts=50e6, k2=(math.log(38.7 * 128256), 0.15)
    )
    best = fit_branches(synthetic(pairs, lambda b, c: -pools), known)[0]
    assert list(best.sampler) == [True, True, False, False]
    assert best.params["k1"] == pytest.approx(208e3, rel=0.03)
    assert best.params["k2"] == pytest.approx(38.5 * 128256, rel=0.03) and best.assumed == "k2"


def test_two_launches_each_in_its_own_branch_are_no_line():
    split = fitted(
        synthetic([(512, 128), (8192, 16)], lambda b, c: np.array([0.37, 1.12]) * GIB),
        intercepts=50e6,
    )
    assert list(split.sampler) == [True, False] and not {"k1", "k2"} & split.params.keys()


def test_a_launch_whose_kernel_takes_another_workspace_is_left_out():
    """The H200's launch at 32,768 tokens lies 1.75 GiB above the line of the two below it."""
    pairs = [(8192, 1024), (16384, 1024), (8192, 128), (16384, 128), (32768, 256)]
    pools = np.array([53.15, 53.02, 56.39, 54.80, 49.86]) * GIB
    known = Known(
        exact(16384), exact(0), UNKNOWN, intercepts=50e6, k2=(math.log(38.7 * 128256), 0.15)
    )
    best = fit_branches(synthetic(pairs, lambda b, c: -pools), known)[0]
    assert best.left_out == 4 and best.params["k1"] == pytest.approx(208e3, rel=0.03)
    assert (-pools - best.predicted)[4] == pytest.approx(1.75 * GIB, abs=0.05 * GIB)
