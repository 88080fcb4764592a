"""One panel a method, the others in grey behind: curves of more methods than colours can tell."""

import math
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Real
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

_COLUMNS, _DPI = 4, 150
# Okabe and Ito's blue.
_OWN, _OTHERS, _GUIDE = "#0072B2", "#CFCFCF", "#1A1A1A"


class Curve(NamedTuple):
    """A method's curve.

    Attributes:
        x: values on the horizontal axis.
        y: values on the vertical axis.
        caption: what the panel says below the method's name.
        errors: half lengths of the error bars; None for a line without.
    """

    x: Real[Tensor, " n"]
    y: Real[Tensor, " n"]
    caption: str
    errors: Real[Tensor, " n"] | None = None


def small_multiples(
    curves: Mapping[str, Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Figure:
    """Draw one panel for each method, all with the same axes.

    Args:
        curves: by method.
        title: of the figure.
        x_label: below the lowest panels.
        y_label: left of the leftmost panels.
        y_limits: ends of the vertical axis; None fits all curves.
        diagonal: draw the diagonal of chance.
    """
    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(2.7 * columns + 0.4, 2.4 * rows + 0.6), dpi=_DPI)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels: list[Axes] = list(grid.flat)
    for place, (panel, name) in enumerate(zip(panels, curves, strict=False)):
        for other, curve in curves.items():
            if other != name:
                panel.plot(curve.x, curve.y, color=_OTHERS, linewidth=0.8, zorder=1)
        _own(panel, curves[name])
        if diagonal:
            ends = (float(curves[name].x.min()), float(curves[name].x.max()))
            panel.plot(ends, ends, color=_GUIDE, linewidth=0.8, linestyle=":", zorder=1)
        caption = f"\n{curves[name].caption}" if curves[name].caption else ""
        panel.set_title(f"{textwrap.fill(name, 28)}{caption}", fontsize=10)
        panel.grid(visible=True, color="#EFEFEF", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        # The panel below may be one of the empty ones.
        if place + columns >= len(curves):
            panel.tick_params(labelbottom=True)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    if y_limits is not None:
        panels[0].set_ylim(*y_limits)
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    figure.suptitle(title, fontsize=11)
    return figure


def _own(panel: Axes, curve: Curve) -> None:
    if curve.errors is None:
        panel.plot(curve.x, curve.y, color=_OWN, linewidth=1.8, zorder=2)
    else:
        panel.errorbar(
            curve.x,
            curve.y,
            yerr=curve.errors,
            color=_OWN,
            linewidth=1.8,
            marker="o",
            markersize=3.5,
            capsize=2,
            zorder=2,
        )
