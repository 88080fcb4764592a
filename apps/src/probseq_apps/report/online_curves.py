"""Metrics over the tasks of a stream: pooled over the tasks so far, and task by task."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from probseq_apps.report.figures import (
    Limits,
    headline,
    label_bottom,
    largest_value,
    legend,
    light_grid,
    limits,
    line_style,
    metric_label,
    panels,
    small_note,
)
from probseq_apps.report.online_results import Band, over_seeds

_ACROSS = 5


def over_tasks_figure(
    metrics: Mapping[str, Mapping[str, Band]], order: Sequence[str], *, standardised: bool = False
) -> Figure:
    """Metrics over all learned tasks against their number (thesis Figures 4.3, 4.4, C.1, C.2).

    Args:
        metrics: by metric, then by method, values after each task.
        order: all methods of the run, which fixes their colours.
        standardised: whether errors are in standard deviations.
    """
    figure, found = panels(len(metrics), 3, (4.6, 3.6), shared=False, extra=(0.2, 0.8))
    for axes, (metric, methods) in zip(found, metrics.items(), strict=True):
        bounds = limits(
            {name: band.mean for name, band in methods.items()},
            {name: band.half for name, band in methods.items()},
            ceiling=largest_value(metric),
        )
        for name, band in methods.items():
            _line(axes, name, np.arange(1, len(band.mean) + 1), band, order, bounds)
        axes.set_ylim(bounds.low, bounds.high)
        axes.set_xlabel("Number of learned tasks")
        label = metric_label(metric, standardised=standardised)
        axes.set_ylabel(f"{label}\nover the learned tasks")
        light_grid(axes)
        _whole_ticks(axes, max(len(band.mean) for band in methods.values()))
        small_note(axes, bounds.note)
    headline(figure, _seeds_title("Test metrics over the tasks learned so far", metrics), 11)
    legend(figure, found)
    return figure


def per_task_figure(
    metric: str, methods: Mapping[str, Band], order: Sequence[str], *, standardised: bool = False
) -> Figure:
    """A metric of each task after learning it and every later one (thesis Figures 4.6 to 4.13).

    Args:
        metric: its name.
        methods: matrices by method.
        order: all methods of the run, which fixes their colours.
        standardised: whether errors are in standard deviations.
    """
    tasks = max(len(band.mean) for band in methods.values())
    figure, found = panels(tasks, _ACROSS, (2.35, 2.2), extra=(0.5, 1.1))
    bounds = limits(
        {name: band.mean for name, band in methods.items()},
        {name: band.half for name, band in methods.items()},
        ceiling=largest_value(metric),
    )
    learned = np.arange(1, tasks + 1)
    for task, axes in enumerate(found):
        for name, band in methods.items():
            column = Band(band.mean[task:, task], band.half[task:, task])
            _line(axes, name, learned[task:], column, order, bounds)
        axes.set_title(f"Task {task + 1}", fontsize=10)
        light_grid(axes)
    found[0].set_ylim(bounds.low, bounds.high)
    found[0].set_xlim(0.7, tasks + 0.3)
    _whole_ticks(found[0], tasks)
    label_bottom(found, _ACROSS, "Number of learned tasks")
    figure.supylabel(metric_label(metric, standardised=standardised), fontsize=10)
    title = _seeds_title("Test metric of each task after learning it and later ones", {"": methods})
    headline(figure, f"{title}\n{bounds.note}", 10)
    legend(figure, found)
    return figure


def runtime_figure(seconds: Mapping[str, Band]) -> Figure:
    """Accumulated seconds of learning all tasks, one row a method (thesis Table 4.1).

    Points, not bars, whose lengths mean nothing on a logarithmic axis.

    Args:
        seconds: by method.
    """
    height = 0.34 * len(seconds) + 0.5
    figure, (axes,) = panels(1, 1, (6.0, height), extra=(0.0, 0.6))
    places = np.arange(len(seconds))
    values = np.array([float(band.mean) for band in seconds.values()])
    axes.plot(values, places, linestyle="none", marker="o", markersize=6, color="#0072B2")
    axes.set_yticks(places, list(seconds))
    axes.set_ylim(len(seconds) - 0.4, -0.6)
    axes.set_xscale("log")
    # Names of ticks between powers of ten would overlap.
    axes.xaxis.set_minor_formatter(NullFormatter())
    # Room for the numbers, which stand behind the points.
    axes.set_xlim(values.min() / 2, values.max() * 6)
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            _seconds_text(float(value)),
            (float(value), float(place)),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xlabel("Accumulated time of learning all tasks (s)")
    light_grid(axes)
    return figure


def _line(
    axes: Axes, name: str, x: np.ndarray, band: Band, order: Sequence[str], bounds: Limits
) -> None:
    style = line_style(order.index(name))
    # Many bands above each other are as dark as one.
    shade = max(0.04, min(0.15, 0.5 / len(order)))
    # Where an axis ends at a value that is reached, points are drawn whole.
    inside = not bool((band.mean > bounds.high).any())
    axes.plot(x, band.mean, label=name, linewidth=1.5, markersize=3.5, clip_on=not inside, **style)
    if np.isfinite(band.half).any():
        axes.fill_between(
            x,
            band.mean - band.half,
            band.mean + band.half,
            color=style["color"],
            alpha=shade,
            linewidth=0,
        )


def _whole_ticks(axes: Axes, tasks: int) -> None:
    axes.set_xticks(range(1, tasks + 1) if tasks <= 5 else range(2, tasks + 1, 2))


def _seeds_title(text: str, metrics: Mapping[str, Mapping[str, Band]]) -> str:
    bands = [band for methods in metrics.values() for band in methods.values()]
    banded = any(np.isfinite(band.half).any() for band in bands)
    # Two seeds have a mean but no band worth its name, one has neither.
    few = " (too few for bands)" if max(band.seeds for band in bands) > 1 else ""
    return f"{text}, {over_seeds(bands)}{' with 95% bands' if banded else few}"


def _seconds_text(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.3g} s" if value >= 0.1 else f"{1e3 * value:.3g} ms"
