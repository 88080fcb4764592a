"""Curves of training from the logs of runs, as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from probseq_apps.report.online_look import light_grid, panels

_ACROSS = 3
# Smaller ratios of the largest to the smallest loss need no logarithm, whose ticks are few then.
_WIDE = 10.0
# Rows of a log up to which each has a marker.
_FEW_POINTS = 30


class Quantity(NamedTuple):
    """A panel: a number of the logs.

    Attributes:
        key: where rows hold it.
        title: what it is.
        label: of its axis, with the unit.
        factor: what logged values are multiplied by.
        wide: whether it may span powers of ten.
    """

    key: str
    title: str
    label: str
    factor: float = 1.0
    wide: bool = False


class Line(NamedTuple):
    """A curve of a panel.

    Attributes:
        x: optimizer steps.
        y: values.
        style: colour, dashes and marker.
    """

    x: np.ndarray
    y: np.ndarray
    style: Mapping[str, Any]


def curve_of(
    rows: Sequence[Mapping[str, Any]], quantity: Quantity
) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a number, where it was logged.

    Args:
        rows: of a run's log.
        quantity: the number.
    """
    points: list[tuple[float, float]] = []
    for row in rows:
        found: Any = row
        for part in quantity.key.split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            points.append((row["step"], found))
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], quantity.factor * array[:, 1]


def draw_lines(
    curves: Mapping[Quantity, Sequence[Line]], handles: Sequence[Line2D], file: Path
) -> None:
    """Write a panel for each number, and one legend.

    Args:
        curves: of each number.
        handles: of the legend.
        file: the file; its folder is made.
    """
    across = 2 if len(curves) == 4 else _ACROSS
    figure, found = panels(len(curves), across, (3.5, 2.7), shared=False)
    for axes, (quantity, lines) in zip(found, curves.items(), strict=True):
        for x, y, style in lines:
            (drawn,) = axes.plot(x, y, markersize=3, linewidth=1.4, **style)
            if len(x) > _FEW_POINTS:
                drawn.set_marker("")
        _finish(axes, quantity, [line.y for line in lines])
    legend_below(figure, handles)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


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


def _finish(axes: Axes, quantity: Quantity, curves: Sequence[np.ndarray]) -> None:
    """Title, axes and ticks of a panel."""
    values = np.concatenate(curves)
    if quantity.wide and 0.0 < _WIDE * values.min() < values.max():
        log_axis(axes, values)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.set_title(quantity.title, fontsize=10)
    axes.set_xlabel("Optimizer steps", fontsize=9)
    axes.set_ylabel(quantity.label, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    light_grid(axes)


def _plain(value: float, _: float | int | None) -> str:
    return f"{value:g}"


def _some(value: float, _: float | int | None) -> str:
    """Twice, three and five times a power of ten: all would be too close."""
    return f"{value:g}" if f"{value:.0e}"[0] in "235" else ""
