"""Pictures drawn by parts are those drawn whole, and stand where the law says."""

import numpy as np
import pytest
from matplotlib.text import Text
from test_figures import K1, K2, MODELS, K

from vllm_tuning import Workload, find_optimum
from vllm_tuning.explorer.utilization import at_utilization
from vllm_tuning.figures.law import figure_1, figure_2
from vllm_tuning.figures.pictures import pictures
from vllm_tuning.figures.style import LOOK

NAME = "llama-3-8b-2-layers"
LENGTHS = [(1024, 256), (64, 64), (1900, 100), (1024, 256)]


def shown(model, states):
    """Pixels of the three pictures after each state, all on the same canvases."""
    trio = pictures()
    for lengths, chosen, utilization in states:
        there = at_utilization(model, utilization)
        optimum = find_optimum(there, Workload(*lengths))
        for picture in trio:
            picture.show(there, optimum, chosen if optimum.recommended else None)
        yield [picture.pixels.copy() for picture in trio]


@pytest.mark.parametrize("name", [NAME, "qwen3.5-4b-a30", "llama-3.1-70b-mi300x"])
def test_what_was_shown_before_leaves_no_trace(name):
    model = MODELS[name]
    states = [(lengths, chosen, None) for lengths in LENGTHS for chosen in (None, (512, 8192))]
    if name == NAME:
        states += [((1024, 256), None, utilization) for utilization in (1.0, 0.05, 0.6)]
    moved = list(shown(model, states))
    for state, pixels in zip(states[::-2], moved[::-2], strict=True):
        (fresh,) = shown(model, [state])
        assert all(map(np.array_equal, pixels, fresh)), state


def test_it_moves_at_all():
    first, second = shown(MODELS[NAME], [((1024, 256), None, None), ((1300, 256), None, None)])
    assert not any(map(np.array_equal, first, second))


def test_a_sentence_takes_the_place_of_the_figure():
    (picture, *_), model = pictures(), MODELS[NAME]
    picture.show(model, find_optimum(model, Workload(1024, 256)))
    before = picture.pixels.copy()
    assert picture.say("no such data set").startswith(b"\x89PNG")
    colours = {
        tuple(int(LOOK[run][0][i : i + 2], 16) for i in (1, 3, 5))
        for run in ("model run", "sampler run")
    }
    assert colours <= set(map(tuple, before[..., :3].reshape(-1, 3)))
    assert not colours & set(map(tuple, picture.pixels[..., :3].reshape(-1, 3)))


@pytest.mark.parametrize("draw, along", [(figure_1, 0), (figure_2, 1)])
def test_chosen_flags_stand_at_their_peak_by_hand(draw, along):
    from matplotlib.figure import Figure

    model, chosen = MODELS[NAME], (620, 6000)
    ax = draw(model, find_optimum(model, Workload(1024, 256)), Figure().add_subplot(), chosen)
    (diamond,) = [line for line in ax.lines if line.get_label() == "chosen flags"]
    peak = max(K1 * chosen[1], K2 * chosen[0] + K * chosen[1]) / 2**30
    assert diamond.get_xdata() == [chosen[along]]
    assert diamond.get_ydata() == pytest.approx([peak], rel=1e-3)


@pytest.mark.parametrize("lengths", [(64, 64), (1024, 256), (60000, 5000)], ids=str)
@pytest.mark.parametrize("utilization", [None, 1.0])
def test_no_label_leaves_the_axes_or_covers_another(lengths, utilization):
    there = at_utilization(MODELS[NAME], utilization)
    optimum, trio = find_optimum(there, Workload(*lengths)), pictures()
    best = optimum.recommended
    at = best.max_num_seqs, best.max_num_batched_tokens
    for factors in [None, (1, 4), (4, 1), (1.19, 1), (0.25, 0.25)]:
        chosen = factors and tuple(max(1, round(f * x)) for f, x in zip(factors, at, strict=True))
        for picture in trio:
            picture.show(there, optimum, chosen)
            ax = list(picture.frames.values())[-1][0]
            labels = [
                (text.get_text(), Text.get_window_extent(text))  # without the line to its point
                for text in ax.texts
            ]
            for i, (name, box) in enumerate(labels):
                assert ax.figure.bbox.x0 <= box.x0 and box.x1 <= ax.figure.bbox.x1, name
                assert ax.bbox.y0 - 2 <= box.y0 and box.y1 <= ax.bbox.y1 + 2, name
                assert not [
                    other for other, there in labels[:i] if box.overlaps(there.padded(-2))
                ], (factors, name)
                for line in ax.lines:
                    if line.get_marker() in ("*", "D"):  # C and the chosen flags
                        place = ax.transData.transform(line.get_xydata())[0]
                        assert not box.contains(*place), (factors, name)


@pytest.mark.parametrize("name", [NAME, "vllm-0.32-profile-grid", "qwen1.5-4b-a100"])
def test_the_legend_fits_the_picture(name):
    model, trio = MODELS[name], pictures()
    for picture in trio:
        picture.show(model, find_optimum(model, Workload(1024, 256)))
        ax = list(picture.frames.values())[-1][0]
        for text in ax.get_legend().get_texts() if ax.get_legend() else []:
            box = text.get_window_extent()
            assert ax.figure.bbox.x0 <= box.x0 and box.x1 <= ax.figure.bbox.x1, text.get_text()
