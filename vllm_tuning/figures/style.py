"""How a quantity looks in every figure, and the axes that the figures share.

A quantity has one colour everywhere, and a hatch, line style or marker for grey print (``LOOK``).
"""

import io
import textwrap
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.figure import Figure

from ..units import is_known

INK, GREY = "#222222", "#8a8a8a"
LOOK = {  # colour of Okabe and Ito, hatch, line style, marker
    "weights": ("#0072B2", None, "-", "D"),
    "non-torch": (GREY, "||||", ":", "v"),
    "weights and non-torch": ("#0072B2", "||||", "-", "D"),
    "model run": ("#D55E00", "\\\\\\\\", "--", "s"),
    "sampler run": ("#009E73", "////", "-.", "o"),
    "either run": ("#E69F00", "++", "-", "d"),
    "peak activation": ("#E69F00", "++", "-", "d"),
    "CUDA graphs": ("#CC79A7", "xxxx", ":", "^"),
    "KV cache": ("#56B4E9", None, "-", "P"),
}
LINES = [  # of things that have no colour of their own: colour, line style, marker
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#E69F00", (0, (5, 1)), "v"),
    ("#56B4E9", (0, (3, 1, 1, 1)), "P"),
    (INK, (0, (1, 1)), "d"),
]
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "vllm-tuning",
    "svg.fonttype": "path",
    "axes.titley": 1.0,  # else each drawing measures all ticks, in case they reach the title
}
LABEL = {
    "max_num_seqs": "max_num_seqs, C (requests)",
    "max_num_batched_tokens": "max_num_batched_tokens, B (tokens)",
}
SHORT = {"max_num_seqs": "mns", "max_num_batched_tokens": "mnbt"}
THOUSANDS = ticker.FuncFormatter(lambda value, _: f"{value:,.6g}")
STAR = {"marker": "*", "ms": 15, "color": INK, "mec": "white", "ls": "none", "zorder": 6}


def axes_of(ax, height=3.4):
    """The given Axes, or those of a new pyplot figure 7 inches wide."""
    if ax is not None:
        return ax
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(7, height), layout="constrained")[1]


def rendered(draw, *args, height: float, **saved) -> bytes:
    """``draw(*args, ax)`` 7 inches wide as a file; the same bytes for the same data.

    saved: of ``Figure.savefig``. The reader's own matplotlib settings do not apply.
    """
    out = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(7, height), layout="constrained")
        if not draw(*args, figure.add_subplot()).has_data():
            figure.set_figheight(2.4)  # the labels of the axes have room
        figure.savefig(out, **saved)
    return out.getvalue()


def say(ax, text, instead=False):
    """Sentences above the axes, where they cover nothing; ``instead`` of any data."""
    width = int(104 / 7 * ax.figure.get_figwidth())
    ax.set_title(
        textwrap.fill(text[:1].upper() + text[1:], width), fontsize=8, color="#555555", loc="left"
    )
    if instead:
        ax.set(xticks=[], yticks=[])
    return ax


def legend(ax, ncols=3, below=4.4):
    """One entry a label, ``below`` the axes by so many ems."""
    once = {
        label: getattr(h, "lines", [h])[0]
        for h, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    ax.legend(
        once.values(),
        once,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=ncols,
        borderaxespad=below,
    )
    return ax


def branch_of(model, fitted) -> str:
    """The run that sets the peak of a launch; "either run" where the launches do not show it."""
    return f"{fitted.branch} run" if is_known(model.k1) or is_known(model.k2) else "either run"
