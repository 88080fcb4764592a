"""Colours, panels, titles and legends of all figures; methods compared in small panels.

They are built with matplotlib's object-oriented API on the Agg canvas: no window, no global state.
matplotlib comes with the extra ``plots``.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probseq.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

# Okabe and Ito's colours, told apart under every common colour-blindness, and a dark one in place
# of their yellow, which white swallows; black is for data.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#661100")
# Of lines that guide the eye, such as perfect calibration.
GUIDE = "#1A1A1A"
# Of data that a model has seen.
OLD_DATA = "#8A8A8A"
# More curves than these are told apart in a panel each, by :func:`small_multiples`.
IN_A_PANEL = 7
_DASHES = ("-", "--", ":")
# One more than colours: where a colour comes again, the marker is another.
_MARKERS = "osD^vPX*"
# Width of a letter, on average and with some room, as a share of its height.
_LETTER = 0.6
_MULTIPLES_ACROSS, _BEHIND = 2, "#CFCFCF"
# Points of a curve of training up to which each has a marker.
_FEW_POINTS = 30


def line_style(index: int) -> dict[str, Any]:
    """Return colour, dash and marker of the method at a position: the same in a run's pictures."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": _DASHES[index // len(COLOURS) % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, of inches."""
    figures = require("matplotlib.figure", extra="plots", distribution="probseq")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="probseq")
    figure: Figure = figures.Figure(figsize=(width, height), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    agg.FigureCanvasAgg(figure)
    return figure


def bare(axes: "Axes") -> None:
    """Take off the upper and the right line, and make the numbers small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def panels(
    count: int,
    across: int,
    size: tuple[float, float],
    *,
    shared: bool = True,
    extra: tuple[float, float] = (0.5, 0.7),
) -> "tuple[Figure, list[Axes]]":
    """Return a figure with a grid of panels.

    At most ``across`` stand in a row; ``size`` is width and height of one in inches, ``extra``
    that of what stands around them.
    """
    columns = min(across, count)
    rows = math.ceil(count / columns)
    figure = new_figure(size[0] * columns + extra[0], size[1] * rows + extra[1])
    grid: list[Axes] = []
    for position in range(count):
        first = grid[0] if shared and grid else None
        axes = figure.add_subplot(rows, columns, position + 1, sharex=first, sharey=first)
        bare(axes)
        if shared:
            axes.tick_params(labelleft=position % columns == 0)
            axes.tick_params(labelbottom=position + columns >= count)
        grid.append(axes)
    return figure, grid


def headline(figure: "Figure", text: str, size: int) -> None:
    """Set a title above all panels, in as many lines as the figure's width asks for.

    Lines that end stay ended.
    """
    letters = int(72 * figure.get_figwidth() / (_LETTER * size))
    lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, letters)]
    figure.suptitle("\n".join(lines), fontsize=size)


def label_bottom(grid: "Sequence[Axes]", across: int, label: str) -> None:
    """Name the horizontal axis below the lowest panels.

    A figure's own label would stand where its legend is.
    """
    for position, axes in enumerate(grid):
        if position + min(across, len(grid)) >= len(grid):
            axes.set_xlabel(label, fontsize=9)


def light_grid(axes: "Axes") -> None:
    """Guide lines behind the data."""
    axes.grid(visible=True, color="#EBEBEB", linewidth=0.6)
    axes.set_axisbelow(True)


def legend(figure: "Figure", sources: "Sequence[Axes]", *, across: int = 6) -> None:
    """Draw one legend below the panels, each label once."""
    entries: dict[str, Any] = {}
    for axes in sources:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    box = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(len(entries), across, _room(figure, entries)),
        frameon=False,
        fontsize=9,
    )
    handles: list[Any] = list(box.legend_handles)
    for handle in handles:
        # One dot of a thousand cannot be seen.
        if hasattr(handle, "get_marker") and handle.get_marker() in ("o", "."):
            handle.set_markersize(max(4.0, handle.get_markersize()))


def line_legend(figure: "Figure", styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw one legend of lines below the panels, as many in a row as the figure has room for."""
    lines = require("matplotlib.lines", extra="plots", distribution="probseq")
    figure.legend(
        handles=[lines.Line2D((), (), label=name, **style) for name, style in styles.items()],
        loc="outside lower center",
        ncols=min(len(styles), _room(figure, styles)),
        frameon=False,
        fontsize=9,
    )


def _room(figure: "Figure", labels: Iterable[str]) -> int:
    """Return how many entries of a legend stand in a row."""
    return max(1, int(figure.get_figwidth() / (0.085 * max(map(len, labels)) + 0.6)))


def log_axis(axes: "Axes", low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with ticks in plain numbers."""

    def some(value: float, _: object) -> str:
        # Twice, three and five times a power of ten: all would be too close.
        return f"{value:g}" if f"{value:.0e}"[0] in "235" else ""

    ticker = require("matplotlib.ticker", extra="plots", distribution="probseq")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    # Less than two decades may have one power of ten.
    axes.yaxis.set_minor_formatter(some if high < 100 * low else ticker.NullFormatter())
    axes.tick_params(which="minor", labelsize=8)


class Curve(NamedTuple):
    """A method's curve; tensors and arrays are welcome.

    `errors` are half lengths of error bars, the caption is text below the method's name in its
    panel.
    """

    x: "ArrayLike"
    y: "ArrayLike"
    errors: "ArrayLike | None" = None
    caption: str = ""


def small_multiples(
    curves: Mapping[str, Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_limits: tuple[float, float] | None = None,
) -> "Figure":
    """Draw one panel for each method, its curve before the others' in grey, with the same axes.

    Limits are by default those of the curves.
    """
    figure, grid = panels(len(curves), _MULTIPLES_ACROSS, (2.7, 2.4), extra=(0.4, 0.6))
    for panel, name in zip(grid, curves, strict=True):
        x, y, errors, caption = curves[name]
        for other, curve in curves.items():
            if other != name:
                panel.plot(curve.x, curve.y, color=_BEHIND, linewidth=0.8, zorder=1)
        style: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.8, "zorder": 2}
        if errors is None:
            panel.plot(x, y, **style)
        else:
            panel.errorbar(x, y, yerr=errors, marker="o", markersize=3.5, capsize=2, **style)
        panel.set_title("\n".join(filter(None, (textwrap.fill(name, 28), caption))), fontsize=10)
        light_grid(panel)
    if y_limits is not None:
        grid[0].set_ylim(*y_limits)
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    figure.suptitle(title, fontsize=11)
    return figure


def curves_plot(
    numbers: Mapping[str, Mapping[str, Curve]], *, title: str, x_label: str
) -> "Figure":
    """Draw a panel for each number, in it a curve for each method, with error bars."""
    figure, grid = panels(len(numbers), 2, (2.6, 2.5), shared=False)
    for axes, (label, curves) in zip(grid, numbers.items(), strict=True):
        for position, (name, (x, y, errors, _)) in enumerate(curves.items()):
            style: dict[str, Any] = {"markersize": 4, "linewidth": 1.6, "capsize": 2}
            axes.errorbar(x, y, yerr=errors, label=name, **(line_style(position) | style))
            axes.set(xlabel=textwrap.fill(x_label, 30), ylabel=label, xticks=np.asarray(x))
        light_grid(axes)
    figure.suptitle(title, fontsize=10)
    legend(figure, grid)
    return figure


class TrainingCurves(NamedTuple):
    """A number during several trainings: a panel of :func:`training_plot`."""

    title: str  # name of the number
    label: str  # of the vertical axis, with the unit
    # Steps, values, and properties of the line, such as :func:`line_style` gives
    curves: "Sequence[tuple[np.ndarray, np.ndarray, Mapping[str, Any]]]"
    wide: bool = False  # whether it may span powers of ten, and then has a logarithmic axis


def training_plot(
    numbers: Sequence[TrainingCurves], styles: Mapping[str, Mapping[str, Any]]
) -> "Figure":
    """Draw numbers that were logged during training by the optimizer's steps."""
    ticker = require("matplotlib.ticker", extra="plots", distribution="probseq")
    across = 2 if len(numbers) == 4 else 3
    figure, grid = panels(len(numbers), across, (3.5, 2.7), shared=False)
    for axes, (title, label, curves, wide) in zip(grid, numbers, strict=True):
        for x, y, style in curves:
            (trace,) = axes.plot(x, y, markersize=3, linewidth=1.4, **style)
            if len(x) > _FEW_POINTS:
                trace.set_marker("")
        values = np.concatenate([y for _, y, _ in curves])
        # Small ratios need no logarithm, whose ticks are few then.
        if wide and 0.0 < 10.0 * values.min() < values.max():
            log_axis(axes, values.min(), values.max())
        else:
            axes.yaxis.set_major_locator(ticker.MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("Optimizer steps", fontsize=9)
        axes.set_ylabel(label, fontsize=9)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        light_grid(axes)
    line: dict[str, Any] = {"markersize": 4, "linewidth": 1.4}
    line_legend(figure, {label: {**line, **style} for label, style in styles.items()})
    return figure
