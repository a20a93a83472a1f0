"""The fit against NIST's certified line and against the real vLLM's peaks."""

import random

import numpy as np
import pytest
from conftest import ROOT

from vllm_tuning.branches import Readings, fit_branches
from vllm_tuning.law import peak_activation
from vllm_tuning.least_squares import least_squares

HIDDEN = 512.0  # 256 hidden x 2 bytes


def readings(grid, which=slice(None)):
    peak = grid["peak"][which]
    return Readings(
        grid["tokens"][which],
        grid["seqs"][which],
        peak,
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
    fit = fit_branches(readings(grid))
    assert fit.model_branch.slope == pytest.approx(10240, rel=1e-6)
    assert fit.sampler_branch.slope == pytest.approx(769068, rel=1e-6)
    assert fit.sampler_branch.k == pytest.approx(512, rel=1e-6)
    assert fit.k_fitted and abs(fit.predicted - grid["peak"]).max() < 1


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
        fit = fit_branches(readings(grid, four), HIDDEN)
        predicted = peak_activation(
            grid["tokens"],
            grid["seqs"],
            fit.model_branch.slope,
            fit.model_branch.intercept,
            fit.sampler_branch.slope,
            fit.sampler_branch.intercept,
            fit.sampler_branch.k,
        )
        assert predicted == pytest.approx(grid["peak"], rel=1e-3), four


def synthetic(pairs, peak, unit=0.01, seed=0):
    tokens, seqs = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    y = np.round(peak(tokens, seqs) / unit) * unit
    return Readings(tokens, seqs, y, np.full(len(y), unit / 2 / 3**0.5), np.full(len(y), unit))


def test_one_branch_only_is_left_one_branch():
    fit = fit_branches(
        synthetic([(1024 * n, 64) for n in range(1, 9)], lambda b, c: 0.1 + 1e-3 * b)
    )
    assert not fit.sampler.any() and fit.model_branch.slope == pytest.approx(1e-3, rel=0.02)


def test_a_single_launch_off_by_rounding_makes_no_branch():
    fit = fit_branches(
        synthetic(
            [(16384, 128), (32768, 128), (65536, 128), (81920, 128)],
            lambda b, c: np.array([-11.32, -9.64, -6.24, -4.53]),
        )
    )
    assert not fit.sampler.any()


def test_three_hundred_launches_with_both_branches():
    draw = np.random.default_rng(3)
    pairs = list(zip(draw.integers(256, 16384, 300), draw.integers(1, 512, 300), strict=True))
    fit = fit_branches(
        synthetic(pairs, lambda b, c: peak_activation(b, c, 1e-4, 0.02, 3e-3, 0.05, 1e-5))
    )
    assert fit.model_branch.slope == pytest.approx(1e-4, abs=4 * fit.model_branch.slope_error)
    assert fit.sampler_branch.slope == pytest.approx(3e-3, abs=4 * fit.sampler_branch.slope_error)
    assert fit.k_fitted and fit.sampler_branch.k == pytest.approx(1e-5, rel=0.05)
    assert fit.chi2 < 2 * 300


def test_both_branches_are_found_over_many_random_laws():
    """Figures rounded to 0.01: the slope is within its error, nearly always."""
    draw, inside = np.random.default_rng(11), 0
    for _ in range(200):
        k1 = draw.uniform(5e-5, 4e-4)
        k2 = draw.uniform(5 * k1, 30 * k1)  # the sampler's branch holds both launches at 512 tokens
        pairs = [(512, 128), (512, 512), (2048, 16), (16384, 16)]
        law = (k1, 0, k2, 0, 0)
        found = fit_branches(synthetic(pairs, lambda b, c, law=law: peak_activation(b, c, *law)))
        model, sampler = found.model_branch, found.sampler_branch
        inside += (
            found.both_slopes
            and abs(model.slope - k1) < 2.5 * model.slope_error
            and abs(sampler.slope - k2) < 2.5 * sampler.slope_error
        )
    assert inside >= 190


def test_a_launch_where_both_runs_meet_does_not_bend_a_slope():
    """The launch at (256, 8192) is in the model's branch; taken for the sampler's it halves K2."""
    k1, k2, k, unit = 374e3, 2.87e6, 16384, 0.01 * 2**30
    pairs = [(8192, 256), (2048, 1024), (4096, 1024), (4096, 16), (16384, 16)]
    fit = fit_branches(synthetic(pairs, lambda b, c: peak_activation(b, c, k1, 0, k2, 0, k), unit))
    assert list(fit.sampler) == [False, True, True, False, False]
    assert not fit.sampler_branch.slope_known and fit.k_fitted
    assert fit.sampler_branch.k == pytest.approx(k, rel=0.3)


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
    """Peaks of a law without intercepts and with a k that is not given: no known slope is wrong.

    Another assignment with the branches far apart at 0 explains each of these to the digit, too.
    """
    tokens, seqs = np.array(pairs, float).T
    unit = np.full(len(peaks), 0.01)
    found = fit_branches(Readings(tokens, seqs, np.array(peaks), unit / 2 / 3**0.5, unit))
    for branch, true in ((found.model_branch, k1), (found.sampler_branch, k2)):
        if branch and branch.slope_known:
            assert branch.slope == pytest.approx(true, abs=max(0.02 * true, 3 * branch.slope_error))
