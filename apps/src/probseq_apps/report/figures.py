"""What all plots share: colours, panels, limits, legends and words."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Real
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from torch import Tensor

# Okabe and Ito's colours, as in `probseq.metrics.plots`; black is kept for data and guides.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GUIDE = "#1A1A1A"
SEEN = "#8A8A8A"
_DASHES = ("-", "--", ":")
# One more than colours: where a colour comes again, the marker is another.
_MARKERS = "osD^vPX"
# What is further above the middle half of all values than this many times their distance from the
# lowest value is cut off.
_FAR = 3.0
_BAND_ROOM = 0.25
_MULTIPLES_ACROSS, _BEHIND = 4, "#CFCFCF"
# Width of a letter, on average and with some room, as a share of its height.
_LETTER = 0.6

_METRICS: Mapping[str, tuple[str, Literal["higher", "lower"]]] = {
    "nlpd": ("NLPD (nats)", "lower"),
    "rmse": ("RMSE", "lower"),
    "ece": ("ECE", "lower"),
    "accuracy": ("Accuracy", "higher"),
}


class Limits(NamedTuple):
    """Ends of an axis that one exploding method doesn't flatten.

    Attributes:
        low: lower end.
        high: upper end.
        cut: largest value of each curve that leaves the axis, by name.
    """

    low: float
    high: float
    cut: Mapping[str, float]

    @property
    def note(self) -> str:
        """Which curves are cut off, or nothing."""
        if not self.cut:
            return ""
        worst = ", ".join(f"{name} up to {value:.3g}" for name, value in self.cut.items())
        return f"cut off above {self.high:.2g}: {worst}"


def limits(
    curves: Mapping[str, np.ndarray],
    halves: Mapping[str, np.ndarray],
    *,
    ceiling: float = math.inf,
) -> Limits:
    """Ends for curves with bands.

    Args:
        curves: values by name; NaN is passed over.
        halves: half widths of the bands by name.
        ceiling: the largest value that there can be, above which no axis goes.
    """
    values = np.concatenate([curve.ravel() for curve in curves.values()])
    values = values[np.isfinite(values)]
    if not values.size:
        return Limits(0.0, 1.0, {})
    lowest = float(values.min())
    upper = float(np.quantile(values, 0.75))
    cap = upper + _FAR * max(upper - lowest, 1e-3 * abs(upper))
    highest = float(values[values <= cap].max())
    # Bands of few seeds are wide: they may widen the axis by so much.
    room = _BAND_ROOM * (highest - lowest)
    top, bottom = highest, lowest
    for name, half in halves.items():
        known = np.isfinite(half) & (curves[name] <= highest)
        high, low = (curves[name] + sign * half for sign in (1.0, -1.0))
        top = max(top, min(highest + room, float(np.max(high[known], initial=highest))))
        bottom = min(bottom, max(lowest - room, float(np.min(low[known], initial=lowest))))
    if lowest >= 0.0:
        # Errors have no negative values, whatever their band says.
        bottom = max(bottom, 0.0)
    margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    cut = {
        name: float(np.nanmax(np.where(np.isfinite(curve), curve, -math.inf)))
        for name, curve in curves.items()
        if np.nanmax(np.where(np.isfinite(curve), curve, -math.inf)) > top + margin
    }
    return Limits(bottom - margin, min(top + margin, ceiling), cut)


def metric_label(metric: str, *, standardised: bool = False) -> str:
    """What a metric is called on an axis, with its unit.

    Args:
        metric: its name.
        standardised: whether errors are in standard deviations of the targets.
    """
    label = _METRICS.get(metric, (metric, "lower"))[0]
    return f"{label} (standardised)" if standardised and metric == "rmse" else label


def largest_value(metric: str) -> float:
    """The largest value that a metric can have."""
    return 1.0 if metric in ("accuracy", "ece") else math.inf


def lower_is_better(metric: str) -> bool:
    """Which end of a metric is good."""
    return _METRICS.get(metric, (metric, "lower"))[1] == "lower"


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
) -> tuple[Figure, list[Axes]]:
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
    figure = Figure(figsize=(size[0] * columns + extra[0], size[1] * rows + extra[1]), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    FigureCanvasAgg(figure)
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


def headline(figure: Figure, text: str, size: int) -> None:
    """A title above all panels, in as many lines as the figure's width asks for.

    Args:
        figure: the figure.
        text: its title; lines that end stay ended.
        size: of its letters in points.
    """
    letters = int(72 * figure.get_figwidth() / (_LETTER * size))
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, letters)]
    figure.suptitle("\n".join(lines), fontsize=size)


def label_bottom(found: Sequence[Axes], across: int, label: str) -> None:
    """Name the horizontal axis below the lowest panels.

    A figure's own label would stand where its legend is.
    """
    for place, axes in enumerate(found):
        if place + min(across, len(found)) >= len(found):
            axes.set_xlabel(label, fontsize=9)


def light_grid(axes: Axes) -> None:
    """Guide lines behind the data."""
    axes.grid(visible=True, color="#EBEBEB", linewidth=0.6)
    axes.set_axisbelow(True)


def legend(figure: Figure, sources: Sequence[Axes], *, across: int = 6) -> None:
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
    for handle in box.legend_handles:
        # One dot of a thousand cannot be seen.
        if isinstance(handle, Line2D) and handle.get_marker() in ("o", "."):
            handle.set_markersize(max(4.0, handle.get_markersize()))


def small_note(axes: Axes, text: str) -> None:
    """A remark above a panel, left of its title's place."""
    if text:
        axes.set_title(textwrap.fill(text, 70), fontsize=7.5, loc="left", color="#505050")


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
    """One legend below all panels, as many entries in a row as fit the figure.

    Args:
        figure: the figure.
        handles: of the entries.
    """
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
    """Make the vertical axis logarithmic, with ticks in plain numbers.

    Args:
        axes: the panel.
        values: all that it shows.
    """
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
