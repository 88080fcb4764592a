"""What figures share: colours, panels, titles and legends.

They are built with matplotlib's object-oriented API on the Agg canvas: no window, no global state.
matplotlib comes with the extra ``plots``.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from probseq.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "GUIDE",
    "SEEN",
    "headline",
    "label_bottom",
    "legend",
    "light_grid",
    "line_style",
    "panels",
]

# Okabe and Ito's colours, told apart under every common colour-blindness; black is kept for data.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GUIDE = "#1A1A1A"
SEEN = "#8A8A8A"
_DASHES = ("-", "--", ":")
# One more than colours: where a colour comes again, the marker is another.
_MARKERS = "osD^vPX"
# Width of a letter, on average and with some room, as a share of its height.
_LETTER = 0.6


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the method at a place; the same in every picture of a run."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": _DASHES[index // len(COLOURS) % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def panels(
    count: int,
    across: int,
    size: tuple[float, float],
    *,
    shared: bool = True,
    extra: tuple[float, float] = (0.5, 0.7),
) -> "tuple[Figure, list[Axes]]":
    """A figure with a grid of panels.

    Args:
        count: number of panels.
        across: most of them in a row.
        size: width and height of one in inches.
        shared: whether all have the same axes.
        extra: width and height for what stands around them.
    """
    columns = min(across, count)
    rows = math.ceil(count / columns)
    figures = require("matplotlib.figure", extra="plots", distribution="probseq")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="probseq")
    figure: Figure = figures.Figure(
        figsize=(size[0] * columns + extra[0], size[1] * rows + extra[1]), dpi=150
    )
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    agg.FigureCanvasAgg(figure)
    found: list[Axes] = []
    for place in range(count):
        first = found[0] if shared and found else None
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if shared:
            axes.tick_params(labelleft=place % columns == 0)
            axes.tick_params(labelbottom=place + columns >= count)
        found.append(axes)
    return figure, found


def headline(figure: "Figure", text: str, size: int) -> None:
    """A title above all panels, in as many lines as the figure's width asks for.

    Args:
        figure: the figure.
        text: its title; lines that end stay ended.
        size: of its letters in points.
    """
    letters = int(72 * figure.get_figwidth() / (_LETTER * size))
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, letters)]
    figure.suptitle("\n".join(lines), fontsize=size)


def label_bottom(found: "Sequence[Axes]", across: int, label: str) -> None:
    """Name the horizontal axis below the lowest panels.

    A figure's own label would stand where its legend is.
    """
    for place, axes in enumerate(found):
        if place + min(across, len(found)) >= len(found):
            axes.set_xlabel(label, fontsize=9)


def light_grid(axes: "Axes") -> None:
    """Guide lines behind the data."""
    axes.grid(visible=True, color="#EBEBEB", linewidth=0.6)
    axes.set_axisbelow(True)


def legend(figure: "Figure", sources: "Sequence[Axes]", *, across: int = 6) -> None:
    """One legend below the panels, each label once."""
    entries: dict[str, Any] = {}
    for axes in sources:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    box = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(len(entries), across),
        frameon=False,
        fontsize=9,
    )
    handles: list[Any] = list(box.legend_handles)
    for handle in handles:
        # One dot of a thousand cannot be seen.
        if hasattr(handle, "get_marker") and handle.get_marker() in ("o", "."):
            handle.set_markersize(max(4.0, handle.get_markersize()))
