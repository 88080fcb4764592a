"""Parts of several pictures."""

from typing import TYPE_CHECKING, Any

from probseq.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def shade(axes: "Axes", x: Any, low: Any, high: Any, alpha: float, **style: Any) -> None:
    """Fill the band between two curves."""
    style = {"color": COLOURS[4], "linewidth": 0, "alpha": alpha} | style
    axes.fill_between(x, low, high, **style)


def dots(axes: "Axes", x: Any, y: Any, marker: str, size: float, **style: Any) -> None:
    """Draw points without a line between them."""
    axes.plot(x, y, linestyle="none", marker=marker, markersize=size, **style)
