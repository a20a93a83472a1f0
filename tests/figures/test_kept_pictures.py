"""A stored picture stays where only the processor's rounding differs, else the new one stands."""

import base64
import io
import json
from functools import cache

import numpy as np
import pytest
from conftest import ROOT
from matplotlib.figure import Figure
from PIL import Image

from vllm_tuning.figures.kept_pictures import keep_pictures, same_picture

RNG = np.random.default_rng(7)


@cache
def drawn(height=2.0, kind="png"):
    figure = Figure(figsize=(7, 3.4))
    figure.add_subplot().plot([0, 1, 2], [1, height, 3], "*")
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def rounded(png, levels=2, pixels=70):
    image = np.array(Image.open(io.BytesIO(png)))
    flat = image.reshape(-1, image.shape[-1])
    chosen = RNG.choice(len(flat), pixels, replace=False)
    flat[chosen, :3] = np.where(
        flat[chosen, :3] > 127, flat[chosen, :3] - levels, flat[chosen, :3] + levels
    )
    out = io.BytesIO()
    Image.fromarray(image).save(out, "png")
    return out.getvalue()


def notebook(png):
    return json.dumps({"outputs": [{"data": {"image/png": base64.b64encode(png).decode() + "\n"}}]})


def page(svg):
    return f'<img alt="x" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'


def test_two_grey_levels_in_70_pixels_stay():
    old = drawn()
    new = rounded(old)
    assert new != old and same_picture(new, old)
    assert keep_pictures(notebook(new), notebook(old)) == notebook(old)


@pytest.mark.parametrize(
    "redraw",
    [
        lambda: drawn(2.01),
        lambda: drawn(2.2),
        lambda: rounded(drawn(), levels=8),
        lambda: rounded(drawn(), pixels=2000),
        lambda: drawn(kind="svg"),
    ],
    ids=["a hundredth higher", "higher", "darker", "everywhere", "SVG"],
)
def test_what_is_redrawn_takes_its_place(redraw):
    new = redraw()
    assert not same_picture(new, drawn())
    assert keep_pictures(notebook(new), notebook(drawn())) == notebook(new)


def test_text_beside_a_kept_picture_is_the_new_one():
    old = notebook(drawn()).replace("outputs", "one")
    new = notebook(rounded(drawn())).replace("outputs", "two")
    assert keep_pictures(new, old) == old.replace("one", "two")


def test_the_last_digit_of_an_svg_stays_and_another_number_or_colour_does_not():
    old = (ROOT / "reports/figure_1.svg").read_bytes()
    for change, same in (
        ((b"168.197885", b"168.197889"), True),
        ((b"168.197885", b"168.3"), False),
        ((b"#009e73", b"#009e74"), False),
        ((b"max_num_seqs", b"seqs"), False),
        ((b"p1e294095e8", b"p1e294095e9"), True),
    ):
        assert change[0] in old
        new = old.replace(*change)
        assert same_picture(new, old) == same, change
        assert keep_pictures(page(new), page(old)) == page(old if same else new)
        inline, stored = (svg[svg.index(b"<svg") :].decode() for svg in (new, old))
        assert keep_pictures(inline, stored).strip() == (stored if same else inline).strip()
