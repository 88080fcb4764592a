"""Metrics over the tasks of a stream: pooled over the tasks so far, and task by task."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ohsvgp.plots.drawing import shade
from probseq.figures import headline, label_bottom, legend, light_grid, line_style, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 5
# What is further above the middle half of all values than this many times their distance from the
# lowest value is cut off.
_FAR, _BAND_ROOM = 3.0, 0.25


class Metric(NamedTuple):
    """A number that is measured."""

    label: str  # on axes, with its unit
    lower_is_better: bool = True
    largest: float = math.inf  # that there can be


class Band(NamedTuple):
    """Means over seeds."""

    mean: np.ndarray
    half: np.ndarray  # of the 95% confidence interval; NaN for none
    seeds: int = 1  # their number


class AxisEnds(NamedTuple):
    """Ends of an axis that one exploding method doesn't flatten, and what leaves it."""

    low: float
    high: float
    note: str = ""


def axis_ends(methods: Mapping[str, Band], ceiling: float) -> AxisEnds:
    """Return ends of an axis for curves with bands, none above the ceiling."""
    values = np.concatenate([band.mean.ravel() for band in methods.values()])
    values = values[np.isfinite(values)]
    if not values.size:
        return AxisEnds(0.0, 1.0)
    lowest, upper = float(values.min()), float(np.quantile(values, 0.75))
    cap = upper + _FAR * max(upper - lowest, 1e-3 * abs(upper))
    highest = float(values[values <= cap].max())
    # Bands of few seeds are wide: they may widen the axis by so much.
    room = _BAND_ROOM * (highest - lowest)
    top, bottom = highest, lowest
    for mean, half, _ in methods.values():
        finite = np.isfinite(half) & (mean <= highest)
        high, low = (mean + half)[finite], (mean - half)[finite]
        top = max(top, min(highest + room, float(np.max(high, initial=highest))))
        bottom = min(bottom, max(lowest - room, float(np.min(low, initial=lowest))))
    # Errors have no negative values, whatever their band says.
    bottom = max(bottom, 0.0) if lowest >= 0.0 else bottom
    margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    finite = {name: band.mean[np.isfinite(band.mean)] for name, band in methods.items()}
    peaks = {name: mean.max(initial=-math.inf) for name, mean in finite.items()}
    cut = [f"{name} up to {peak:.3g}" for name, peak in peaks.items() if peak > top + margin]
    end = min(top + margin, ceiling)
    return AxisEnds(
        bottom - margin, end, f"cut off above {end:.2g}: {', '.join(cut)}" if cut else ""
    )


def metrics_plot(
    metrics: Sequence[tuple[Metric, Mapping[str, Band]]], order: Sequence[str]
) -> "Figure":
    """Draw metrics over all learned tasks against their number (thesis Figures 4.3, 4.4).

    The order is of the names of all methods, which fixes their colours.
    """
    figure, grid = panels(len(metrics), 3, (4.6, 3.6), shared=False, extra=(0.2, 0.8))
    for axes, (metric, methods) in zip(grid, metrics, strict=True):
        bounds = axis_ends(methods, metric.largest)
        for name, band in methods.items():
            _line(axes, name, np.arange(1, len(band.mean) + 1), band, order, bounds)
        axes.set_ylim(bounds.low, bounds.high)
        axes.set_xlabel("Number of learned tasks")
        axes.set_ylabel(f"{metric.label}\nover the learned tasks")
        light_grid(axes)
        _whole_ticks(axes, max(len(band.mean) for band in methods.values()))
        if bounds.note:
            note = textwrap.fill(bounds.note, 70)
            axes.set_title(note, fontsize=7.5, loc="left", color="#505050")
    bands = [band for _, methods in metrics for band in methods.values()]
    headline(figure, f"Test metrics over the tasks learned so far, {_seeds(bands)}", 11)
    legend(figure, grid)
    return figure


def per_task_plot(metric: Metric, methods: Mapping[str, Band], order: Sequence[str]) -> "Figure":
    """Draw a metric of each task after it and every later one (thesis Figures 4.6 to 4.13).

    Matrices by method have a row after each task, and a column of each task.
    """
    tasks = max(len(band.mean) for band in methods.values())
    figure, grid = panels(tasks, _ACROSS, (2.35, 2.2), extra=(0.5, 1.1))
    bounds = axis_ends(methods, metric.largest)
    learned = np.arange(1, tasks + 1)
    for task, axes in enumerate(grid):
        for name, band in methods.items():
            column = Band(band.mean[task:, task], band.half[task:, task])
            _line(axes, name, learned[task:], column, order, bounds)
        axes.set_title(f"Task {task + 1}", fontsize=10)
        light_grid(axes)
    grid[0].set_ylim(bounds.low, bounds.high)
    grid[0].set_xlim(0.7, tasks + 0.3)
    _whole_ticks(grid[0], tasks)
    label_bottom(grid, _ACROSS, "Number of learned tasks")
    figure.supylabel(metric.label, fontsize=10)
    title = "Test metric of each task after learning it and later ones"
    headline(figure, f"{title}, {_seeds(list(methods.values()))}\n{bounds.note}", 10)
    legend(figure, grid)
    return figure


def _line(
    axes: "Axes", name: str, x: np.ndarray, band: Band, order: Sequence[str], bounds: AxisEnds
) -> None:
    style = line_style(order.index(name))
    # Many bands above each other are as dark as one.
    alpha = max(0.04, min(0.15, 0.5 / len(order)))
    # Where an axis ends at a value that is reached, points are drawn whole.
    inside = not bool((band.mean > bounds.high).any())
    axes.plot(x, band.mean, label=name, linewidth=1.5, markersize=3.5, clip_on=not inside, **style)
    if np.isfinite(band.half).any():
        edges = (band.mean - band.half, band.mean + band.half)
        shade(axes, x, *edges, alpha, color=style["color"])


def _whole_ticks(axes: "Axes", tasks: int) -> None:
    axes.set_xticks(range(1, tasks + 1) if tasks <= 5 else range(2, tasks + 1, 2))


def _seeds(bands: Sequence[Band]) -> str:
    most = max(band.seeds for band in bands)
    text = "one seed" if most == 1 else f"mean over {most} seeds"
    banded = any(np.isfinite(band.half).any() for band in bands)
    return f"{text} with 95% bands" if banded else text
