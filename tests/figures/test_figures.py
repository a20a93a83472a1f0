"""Figures: axes with units, and lines where the law says, computed here by hand."""

import numpy as np
import pytest
from conftest import ROOT
from matplotlib.figure import Figure

from vllm_tuning import figures, find_optimum, model_of, read_launches
from vllm_tuning.figures.budget_bars import budget_bars
from vllm_tuning.figures.kept_pictures import same_picture
from vllm_tuning.figures.law import figure_1, figure_2, price_list, residuals, sensitivity
from vllm_tuning.releases import default_flags
from vllm_tuning.report.sections import figure
from vllm_tuning.units import GIB, InputError
from vllm_tuning.workload import Workload

K1, K2, K = 147456, 3094568, 8192  # exact bytes of the two-layer model
WORK = Workload(1024, 256)
MODELS = {}
for folder in sorted(ROOT.glob("data/*/launches.csv")):
    try:
        MODELS[folder.parent.name] = model_of([folder.parent])
    except InputError:
        assert folder.parent.name == "qwen3-14b-h100-releases"  # refused: four releases


def axes():
    return Figure(figsize=(7, 3.4)).add_subplot()


def all_figures(model):
    optimum = find_optimum(model, WORK)
    return {
        "figure_1": figure_1(model, optimum, axes()),
        "figure_2": figure_2(model, optimum, axes()),
        "residuals": residuals(model, axes()),
        "budget_bars": budget_bars(model, optimum, axes()),
        "price_list": price_list(optimum, axes()),
        "sensitivity": sensitivity(model, WORK, axes()),
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_carried_set_draws_every_figure_with_units(name):
    for title, ax in all_figures(MODELS[name]).items():
        ax.figure.canvas.draw()
        labels = ax.get_xlabel() + ax.get_ylabel()
        assert any(unit in labels for unit in ("GiB", "MiB", "tokens", "requests")), title
        if not ax.has_data():
            assert len(ax.get_title(loc="left")) > 20, f"{title} is empty and does not say why"


def lines(ax):
    return {line.get_label(): line.get_data() for line in ax.get_lines()}


def test_figure_1_flat_and_rising_by_hand():
    model = MODELS["llama-3-8b-2-layers"]
    optimum = find_optimum(model, WORK)
    drawn = lines(figure_1(model, optimum, axes()))
    budget, shift = optimum.recommended.max_num_batched_tokens, model.a1.n
    x, flat = drawn["model run"]
    assert flat == pytest.approx(np.full(len(x), (K1 * budget + shift) / GIB), rel=1e-4)
    x, rising = drawn["sampler run"]
    assert rising == pytest.approx((K2 * x + K * budget + shift) / GIB, rel=1e-3, abs=1e-4)


def test_figure_2_rising_and_cut_by_hand():
    model = MODELS["llama-3-8b-2-layers"]
    optimum = find_optimum(model, WORK)
    drawn = lines(figure_2(model, optimum, axes()))
    seqs, shift = optimum.recommended.max_num_seqs, model.a1.n
    x, rising = drawn["model run"]
    assert rising == pytest.approx((K1 * x + shift) / GIB, rel=1e-3, abs=1e-4)
    x, cut = drawn["sampler run"]
    assert cut == pytest.approx(
        (K2 * np.minimum(seqs, x) + K * x + shift) / GIB, rel=1e-3, abs=1e-4
    )


def test_residuals_of_the_a30_are_those_of_a_straight_line_by_hand():
    model = MODELS["qwen3.5-4b-a30"]
    tokens = np.array([launch.max_num_batched_tokens for launch in read_launches("qwen3.5-4b-a30")])
    pool = np.array([11.32, 9.64, 6.24, 4.53])
    expected = pool - np.polyval(np.polyfit(tokens, pool, 1), tokens)
    ax = residuals(model, axes())
    scale = 1024 if "MiB" in ax.get_ylabel() else 1
    points = np.concatenate([np.atleast_1d(line.get_ydata()) for line in ax.get_lines()])
    for value in expected:
        assert np.min(np.abs(points - value * scale)) < 1e-6 * scale


def test_the_segments_of_the_budget_add_up_to_the_whole_card():
    model = MODELS["llama-3-8b-2-layers"]
    ax = budget_bars(model, find_optimum(model, WORK), axes())
    for y in {round(bar.get_y(), 6) for bar in ax.patches if bar.get_width() > 0}:
        width = sum(bar.get_width() for bar in ax.patches if round(bar.get_y(), 6) == y)
        assert width == pytest.approx(10, abs=0.03)


def test_default_flags_of_vllm():
    assert default_flags(24 * GIB) == (256, 2048)
    assert default_flags(79.19 * GIB) == (1024, 8192)
    assert default_flags(191.98 * GIB) == (1024, 16384)
    # as the sources of 0.8.5, 0.25 and 0.30 have it: A100, GB10, more than 160 GiB
    assert default_flags(79.15 * GIB, "A100-80GB", "0.8.5") == (1024, 8192)
    assert default_flags(79.15 * GIB, "A100-80GB", "0.9.2") == (256, 2048)
    assert default_flags(121.69 * GIB, "GB10", "0.30.0") == (1024, 8192)
    assert default_flags(121.69 * GIB, "GB10") == (256, 2048)
    assert default_flags(191.98 * GIB, "MI300X", "0.25.1") == (1024, 8192)
    # V0 profiles a whole prompt at once, and chunks only above 32,768
    assert default_flags(31.74 * GIB, "V100-32GB", "0.8.5", 32768) == (256, 32768)
    assert default_flags(79.19 * GIB, "H100", "0.7.3", 40000) == (256, 2048)


def test_bars_of_the_price_list_are_those_of_a_search_by_hand(exact_launches):
    first = exact_launches[0]
    left_over = first["kv_cache_bytes"] + first["peak_activation_bytes"]
    ax = price_list(find_optimum(MODELS["llama-3-8b-2-layers"], WORK), axes())
    drawn = {
        round(2 ** (bar.get_x() + bar.get_width() / 2)): bar.get_height() for bar in ax.patches
    }
    assert set(drawn) == {512, 1024, 2048, 4096, 8192, 16384, 32768}
    for tokens, height in drawn.items():
        # 1,280 tokens are 40 blocks of 32, at 8,192 bytes a token; one is reserved
        def holds(seqs, tokens=tokens):
            peak = max(K1 * tokens, K2 * min(seqs, tokens) + K * tokens)
            return (left_over - peak) // (32 * 8192) - 1 >= 40 * seqs

        most = max(filter(holds, range(tokens + 1)), default=0)
        assert most - 1 <= height <= most, tokens


def test_launches_of_the_grid_stand_where_they_were_measured(grid):
    model = MODELS["vllm-0.32-profile-grid"]
    for draw, axis in ((figure_1, "seqs"), (figure_2, "tokens")):
        ax = draw(model, find_optimum(model, WORK), axes())
        drawn = sorted(
            tuple(np.ravel(container.lines[0].get_data())) for container in ax.containers
        )
        assert np.array(drawn) == pytest.approx(
            np.array(sorted(zip(grid[axis], grid["peak"] / GIB, strict=True)))
        )


def test_the_curves_of_the_grid_are_its_law_to_the_byte():
    model = MODELS["vllm-0.32-profile-grid"]
    drawn = lines(figure_1(model, find_optimum(model, WORK), axes()))
    x, rising = drawn["sampler run"]
    assert drawn["model run"][1] * GIB == pytest.approx(10240 * 16384)
    assert rising * GIB == pytest.approx(769068 * x + 512 * 16384)
    assert drawn["P, the larger of both at mnbt 16,384"][1] * GIB == pytest.approx(
        np.maximum(10240 * 16384, 769068 * x + 512 * 16384)
    )


def test_sensitivity_solves_the_two_balances(exact_launches):
    first = exact_launches[0]
    left_over = first["kv_cache_bytes"] + first["peak_activation_bytes"]
    ax = sensitivity(MODELS["llama-3-8b-2-layers"], WORK, axes())
    lengths, seqs = lines(ax)["C*, left axis"]
    right = next(other for other in ax.figure.axes if other is not ax)
    assert lengths[[0, -1]] == pytest.approx([320, 5120])
    for length, c, b in zip(lengths, seqs, right.get_lines()[0].get_ydata(), strict=True):
        balances = [[K1 - K, -K2], [K1, length * 8192]]
        assert [b, c] == pytest.approx(np.linalg.solve(balances, [0, left_over]), rel=1e-3)


def test_a_figure_is_the_same_bytes_twice_and_the_picture_of_the_readme_is_figure_1():
    import base64

    model = MODELS["llama-3-8b-2-layers"]
    html = [figure(figures.figure_1, model, find_optimum(model, WORK), alt="x") for _ in range(2)]
    assert html[0] == html[1]
    svg = base64.b64decode(html[0].split("base64,")[1].split('"')[0])
    assert b"<svg" in svg
    assert same_picture((ROOT / "reports/figure_1.svg").read_bytes(), svg), (
        "write the figure again: reports/figure_1.svg is the README's picture"
    )
