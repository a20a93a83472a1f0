"""Figures as PNG, fast to draw again: what stays is drawn once, then only what an optimum moves."""

import io
import textwrap

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from .budget_bars import budget_bars, budgets
from .law import edges, figure_1, figure_2, marked, shows_pool
from .style import STYLE

INCHES, DPI = (6.4, 3.1), 100
MOST_FRAMES = 12
FAST = STYLE | {
    "text.hinting": "none",  # text is most of the time
    "legend.columnspacing": 1.0,
    "legend.handletextpad": 0.5,
}  # three fit the width


class Picture:
    """One figure on a fixed canvas; ``pixels`` are (height, width, 4) of what was shown last.

    draw: a figure function with ``chosen`` and ``part``. frame_key: what stays in its picture, of
    the same arguments; for each key the axes and their pixels are kept.
    """

    def __init__(self, draw, frame_key, left=0.1):
        self.draw, self.frame_key, self.left = draw, frame_key, left
        self.frames, self.pixels = {}, None

    def show(self, model, optimum, chosen=None) -> bytes:
        """PNG of ``draw(model, optimum, chosen=chosen)``."""
        with matplotlib.rc_context(FAST):
            key = self.frame_key(model, optimum, chosen)
            if key not in self.frames:
                ax = self._figure().add_subplot()
                self.draw(model, optimum, ax, chosen, "frame")
                lines = 1 + ax.get_title("left").count("\n")
                ax.set_position((self.left, 0.33, 0.98 - self.left, 0.64 - 0.047 * lines))
                ax.figure.canvas.draw()
                self.frames = dict([*self.frames.items()][1 - MOST_FRAMES :])
                self.frames[key] = ax, ax.figure.canvas.copy_from_bbox(ax.figure.bbox)
            else:
                ax, _ = self.frames[key]
                for artist in _moving(ax):
                    artist.remove()
                self.draw(model, optimum, ax, chosen, "moving")
            ax, frame = self.frames[key]
            ax.figure.canvas.restore_region(frame)
            for artist in _moving(ax):
                ax.draw_artist(artist)
            return self._png(ax.figure)

    def say(self, reason: str) -> bytes:
        """PNG of the sentence in the place of the figure."""
        printable = "".join(letter if letter.isprintable() else "?" for letter in reason)
        with matplotlib.rc_context(FAST):
            figure = self._figure()
            figure.text(0.5, 0.6, textwrap.fill(printable, 80), ha="center", va="center")
            figure.canvas.draw()
            return self._png(figure)

    def _figure(self):
        return FigureCanvasAgg(Figure(INCHES, DPI)).figure

    def _png(self, figure) -> bytes:
        self.pixels = np.asarray(figure.canvas.buffer_rgba())
        return png(self.pixels)


def png(pixels) -> bytes:
    """PNG of (height, width, 4) opaque pixels; the same pixels give the same bytes."""
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[..., :3])).save(out, "png", compress_level=1)
    return out.getvalue()


def pictures() -> list[Picture]:
    """Figure 1, Figure 2 and the memory budget."""
    return [
        Picture(figure_1, _law_frame),
        Picture(figure_2, _law_frame),
        Picture(budget_bars, _budget_frame, left=0.17),
    ]


def _moving(ax):
    return sorted(
        (artist for artist in ax.get_children() if artist.get_animated()),
        key=lambda artist: artist.get_zorder(),
    )


def _law_frame(model, optimum, chosen):
    """The ends of the axes; which launches lie on the drawn law; the pool, where it is drawn."""
    points = marked(optimum, chosen)
    shown = list(points.values())[-1:]
    return (
        *edges(model, points).values(),
        *points,
        *(
            name
            for point in shown
            for name, value in point.items()
            if any(getattr(f.launch, name) == value for f in model.launches)
        ),
        model.pool_at_zero_tokens.n if shows_pool(model) else None,
    )


def _budget_frame(model, optimum, chosen):
    """The segments for the legend, the number of bars, the end of the axis, and the still bars."""
    bars = budgets(model, optimum, chosen)
    return (
        len(bars),
        max((bar.whole for bar in bars), default=0),
        *dict.fromkeys(name for bar in bars for name in bar.segments),
        *((bar.ceiling, *bar.segments.values()) for bar in bars if bar.still),
        any(bar.whole > bar.ceiling for bar in bars),
    )
