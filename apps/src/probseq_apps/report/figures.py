"""Small multiples, and what else the plots of reports share."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Real
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from torch import Tensor

from probseq.figures import COLOURS, GUIDE

_MULTIPLES_ACROSS, _BEHIND = 4, "#CFCFCF"


class Curve(NamedTuple):
    """A method's curve."""

    x: Real[Tensor, " n"]  # values on the horizontal axis
    y: Real[Tensor, " n"]  # values on the vertical axis
    caption: str  # what the panel says below the method's name
    errors: Real[Tensor, " n"] | None = None  # half lengths of the error bars


def small_multiples(
    curves: Mapping[str, Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Figure:
    """Draw one panel for each method, all with the same axes."""
    columns = min(_MULTIPLES_ACROSS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(2.7 * columns + 0.4, 2.4 * rows + 0.6), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels: list[Axes] = list(grid.flat)
    for place, (panel, name) in enumerate(zip(panels, curves, strict=False)):
        for other, curve in curves.items():
            if other != name:
                panel.plot(curve.x, curve.y, color=_BEHIND, linewidth=0.8, zorder=1)
        _own(panel, curves[name])
        if diagonal:
            ends = (float(curves[name].x.min()), float(curves[name].x.max()))
            panel.plot(ends, ends, color=GUIDE, linewidth=0.8, linestyle=":", zorder=1)
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
        panel.plot(curve.x, curve.y, color=COLOURS[0], linewidth=1.8, zorder=2)
    else:
        panel.errorbar(
            curve.x,
            curve.y,
            yerr=curve.errors,
            color=COLOURS[0],
            linewidth=1.8,
            marker="o",
            markersize=3.5,
            capsize=2,
            zorder=2,
        )


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    """One legend below all panels, as many entries in a row as fit the figure."""
    letters = max(len(str(handle.get_label())) for handle in handles)
    across = max(1, int(figure.get_figwidth() / (0.085 * letters + 0.6)))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), across),
        frameon=False,
        fontsize=9,
    )


def log_axis(axes: Axes, values: np.ndarray) -> None:
    """Make the vertical axis logarithmic, with ticks in plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_plain)
    # Less than two decades may have one power of ten.
    close = values.max() < 100 * values.min()
    axes.yaxis.set_minor_formatter(_some if close else NullFormatter())
    axes.tick_params(which="minor", labelsize=8)


def _plain(value: float, _: float | int | None) -> str:
    return f"{value:g}"


def _some(value: float, _: float | int | None) -> str:
    """Twice, three and five times a power of ten: all would be too close."""
    return f"{value:g}" if f"{value:.0e}"[0] in "235" else ""
