"""Metrics over the tasks of a stream: pooled over the tasks so far, task by task, as matrices."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ohsvgp.plots.drawing import colour_bar, dots, shade
from probseq.errors import require
from probseq.figures import COLOURS, headline, label_bottom, legend, light_grid, line_style, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS, _MATRICES_ACROSS = 5, 4
# What is further above the middle half of all values than this many times their distance from the
# lowest value is cut off.
_FAR = 3.0
_BAND_ROOM = 0.25
# Above this luminance, black can be read and white cannot.
_BRIGHT = 0.45


class Metric(NamedTuple):
    """What is measured.

    Attributes:
        label: on axes, with its unit.
        lower_is_better: which end is good.
        largest: the largest value that there can be.
    """

    label: str
    lower_is_better: bool = True
    largest: float = math.inf


class Band(NamedTuple):
    """Means over seeds.

    Attributes:
        mean: over the seeds.
        half: half of the 95% confidence interval; NaN for none.
        seeds: how many there are.
    """

    mean: np.ndarray
    half: np.ndarray
    seeds: int = 1


class Limits(NamedTuple):
    """Ends of an axis that one exploding method doesn't flatten, and what leaves it."""

    low: float
    high: float
    note: str = ""


def limits(methods: Mapping[str, Band], *, ceiling: float = math.inf) -> Limits:
    """Return ends of an axis for curves with bands.

    NaN is passed over; no axis goes above the ceiling.
    """
    values = np.concatenate([band.mean.ravel() for band in methods.values()])
    values = values[np.isfinite(values)]
    if not values.size:
        return Limits(0.0, 1.0)
    lowest, upper = float(values.min()), float(np.quantile(values, 0.75))
    cap = upper + _FAR * max(upper - lowest, 1e-3 * abs(upper))
    highest = float(values[values <= cap].max())
    # Bands of few seeds are wide: they may widen the axis by so much.
    room = _BAND_ROOM * (highest - lowest)
    top, bottom = highest, lowest
    for mean, half, _ in methods.values():
        known = np.isfinite(half) & (mean <= highest)
        high, low = (mean + half)[known], (mean - half)[known]
        top = max(top, min(highest + room, float(np.max(high, initial=highest))))
        bottom = min(bottom, max(lowest - room, float(np.min(low, initial=lowest))))
    # Errors have no negative values, whatever their band says.
    bottom = max(bottom, 0.0) if lowest >= 0.0 else bottom
    margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    finite = {name: band.mean[np.isfinite(band.mean)] for name, band in methods.items()}
    peaks = {name: mean.max(initial=-math.inf) for name, mean in finite.items()}
    cut = [f"{name} up to {peak:.3g}" for name, peak in peaks.items() if peak > top + margin]
    end = min(top + margin, ceiling)
    return Limits(bottom - margin, end, f"cut off above {end:.2g}: {', '.join(cut)}" if cut else "")


def metrics_plot(
    metrics: Sequence[tuple[Metric, Mapping[str, Band]]], order: Sequence[str]
) -> "Figure":
    """Draw metrics over all learned tasks against their number (thesis Figures 4.3, 4.4).

    Args:
        metrics: with values after each task by method.
        order: names of all methods, which fixes their colours.
    """
    figure, grid = panels(len(metrics), 3, (4.6, 3.6), shared=False, extra=(0.2, 0.8))
    for axes, (metric, methods) in zip(grid, metrics, strict=True):
        bounds = limits(methods, ceiling=metric.largest)
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

    Args:
        metric: what is measured.
        methods: matrices by method: row after which task, column of which task.
        order: names of all methods, which fixes their colours.
    """
    tasks = max(len(band.mean) for band in methods.values())
    figure, grid = panels(tasks, _ACROSS, (2.35, 2.2), extra=(0.5, 1.1))
    bounds = limits(methods, ceiling=metric.largest)
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


def matrix_plot(metric: Metric, methods: Mapping[str, Band]) -> "Figure":
    """Draw one matrix a method: row after which task, column of which task; colours are shared.

    Args:
        metric: what is measured.
        methods: matrices by method; NaN above the diagonal.
    """
    matplotlib = require("matplotlib", extra="plots", distribution="ohsvgp")
    tasks = max(len(band.mean) for band in methods.values())
    high = limits({name: Band(mean, np.nan * mean) for name, (mean, _, _) in methods.items()}).high
    shown = np.concatenate([band.mean[np.isfinite(band.mean)] for band in methods.values()])
    # Two numbers of a matrix should differ, and five letters fit.
    largest = float(np.abs(shown[shown <= high]).max(initial=0.0))
    digits = 2 if largest < 10 else 1 if largest < 100 else 0
    scale = _scale(metric, shown[shown <= high], digits)
    cut = bool((shown > scale.vmax).any())
    # Dark is bad.
    colours = matplotlib.colormaps["cividis_r" if metric.lower_is_better else "cividis"]
    side = max(1.6, 0.9 + 0.26 * tasks)
    figure, grid = panels(len(methods), _MATRICES_ACROSS, (side, side + 0.5), extra=(1.4, 1.0))
    for axes, (name, band) in zip(grid, methods.items(), strict=True):
        _matrix(axes, band.mean, scale, colours, digits)
        last = band.mean[-1][np.isfinite(band.mean[-1])]
        end, lost = last.mean() if last.size else math.nan, forgetting(metric, band.mean)
        caption = f"at the end {end:.3g}\n(mean over tasks),\nforgotten {lost:+.2g}"
        axes.set_title(f"{textwrap.fill(name, 28)}\n{caption}", fontsize=9)
    ticks = [str(task + 1) for task in range(tasks)]
    grid[0].set_xticks(range(tasks), ticks, fontsize=7)
    grid[0].set_yticks(range(tasks), ticks, fontsize=7)
    extend = "max" if cut else "neither"
    colour_bar(figure, grid, scale, colours, metric.label, extend=extend, shrink=0.8)
    figure.supxlabel("Test part of task", fontsize=10)
    figure.supylabel("After learning task", fontsize=10)
    ends = f"; colours end at {scale.vmax:.2g}, the numbers are as they are" if cut else ""
    headline(figure, f"{metric.label}, {_over(methods.values())}{ends}", 11)
    return figure


def seconds_plot(seconds: Mapping[str, float]) -> "Figure":
    """Draw seconds of learning all tasks, a row for each method (thesis Table 4.1).

    Points, not bars, whose lengths mean nothing on a logarithmic axis.
    """
    ticker = require("matplotlib.ticker", extra="plots", distribution="ohsvgp")
    figure, (axes,) = panels(1, 1, (6.0, 0.34 * len(seconds) + 0.5), extra=(0.0, 0.6))
    places, values = range(len(seconds)), np.array(list(seconds.values()))
    dots(axes, values, places, "o", 6.0, color=COLOURS[0])
    axes.set_yticks(places, list(seconds))
    axes.set_ylim(len(seconds) - 0.4, -0.6)
    axes.set_xscale("log")
    # Names of ticks between powers of ten would overlap.
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    # Room for the numbers, which stand behind the points.
    axes.set_xlim(values.min() / 2, values.max() * 6)
    for place, value in zip(places, values, strict=True):
        short = f"{value:.3g} s" if value >= 0.1 else f"{1e3 * value:.3g} ms"
        text = f"{value:,.0f} s" if value >= 100 else short
        where: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (float(value), float(place)), fontsize=8, **where)
    axes.set_xlabel("Accumulated time of learning all tasks (s)")
    light_grid(axes)
    return figure


def forgetting(metric: Metric, matrix: np.ndarray) -> float:
    """Return how much worse earlier tasks are in the end than when learned, on average."""
    change = (matrix[-1] - np.diagonal(matrix))[:-1]
    worse = float(change.mean()) if change.size else 0.0
    # No minus before zero.
    return (worse if metric.lower_is_better else -worse) + 0.0


def _scale(metric: Metric, values: np.ndarray, digits: int) -> Any:
    """Return ends of the colours: the values', but apart enough for what prints alike.

    What is missing is added at the bad end, where no value is.
    """
    colors = require("matplotlib.colors", extra="plots", distribution="ohsvgp")
    low, high = float(values.min()), float(values.max())
    least = 2 * 10.0**-digits
    if metric.lower_is_better:
        least = max(least, 0.1 * abs(float(values.mean())))
    short = max(0.0, least - (high - low))
    return colors.Normalize(
        *((low, high + short) if metric.lower_is_better else (low - short, high))
    )


def _matrix(axes: "Axes", matrix: np.ndarray, scale: Any, colours: Any, digits: int) -> None:
    axes.imshow(matrix, cmap=colours, norm=scale, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            red, green, blue, _ = colours(scale(value))
            bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue > _BRIGHT
            axes.text(
                float(column),
                float(row),
                f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0e}",
                ha="center",
                va="center",
                fontsize=5.5 if len(matrix) > 6 else 7,
                color="black" if bright else "white",
            )


def _line(
    axes: "Axes", name: str, x: np.ndarray, band: Band, order: Sequence[str], bounds: Limits
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
    if any(np.isfinite(band.half).any() for band in bands):
        return f"{_over(bands)} with 95% bands"
    # Two seeds have a mean but no band worth its name, one has neither.
    few = max(band.seeds for band in bands) > 1
    return f"{_over(bands)}{' (too few for bands)' if few else ''}"


def _over(bands: Any) -> str:
    most = max(band.seeds for band in bands)
    return "one seed" if most == 1 else f"mean over {most} seeds"
