"""Every figure: Axes in, Axes out. Beside them ``budget``, ``scheduler``, ``load``, ``lesson``."""

from .budget_bars import budget_bars, estimated_bars
from .kept_pictures import keep_pictures, same_picture
from .law import figure_1, figure_1_by_length, figure_2, price_list, residuals, sensitivity
from .pictures import pictures, png
from .style import LOOK, STYLE, rendered

__all__ = [
    "LOOK",
    "STYLE",
    "budget_bars",
    "estimated_bars",
    "figure_1",
    "figure_1_by_length",
    "figure_2",
    "keep_pictures",
    "pictures",
    "png",
    "price_list",
    "rendered",
    "residuals",
    "same_picture",
    "sensitivity",
]
