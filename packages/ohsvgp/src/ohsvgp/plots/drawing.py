"""What several pictures draw."""

from typing import TYPE_CHECKING, Any

from probseq.errors import require
from probseq.figures import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def shade(axes: "Axes", x: Any, low: Any, high: Any, alpha: float, **style: Any) -> None:
    """Fill the band between two curves."""
    style = {"color": COLOURS[4], "linewidth": 0, "alpha": alpha} | style
    axes.fill_between(x, low, high, **style)


def dots(axes: "Axes", x: Any, y: Any, marker: str, size: float, **style: Any) -> None:
    """Draw points without a line between them."""
    axes.plot(x, y, linestyle="none", marker=marker, markersize=size, **style)


def colour_bar(
    figure: "Figure", panels: "Sequence[Axes]", scale: Any, colours: Any, label: str, **shape: Any
) -> None:
    """Draw the bar that says what colours mean, beside all panels."""
    cm = require("matplotlib.cm", extra="plots", distribution="ohsvgp")
    bar = figure.colorbar(cm.ScalarMappable(scale, colours), ax=panels, fraction=0.03, **shape)
    bar.set_label(label, fontsize=10)
