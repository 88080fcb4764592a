"""Predictive mean and two standard deviations along a series, with data and inducing locations."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probseq_apps.report.figures import (
    COLOURS,
    GUIDE,
    SEEN,
    headline,
    label_bottom,
    legend,
    panels,
)
from probseq_apps.report.online_results import Predictions

_TEST, _INDUCING = COLOURS[1], COLOURS[3]
_ACROSS_TASKS = 5
_BELOW = 0.14
_MANY, _MANY_SIZE = 1500, 0.8


def final_figure(predictions: Mapping[str, Predictions], labels: tuple[str, str]) -> Figure:
    """Every method after the last task (thesis Figures 4.5 and C.3).

    Args:
        predictions: by method.
        labels: of the time axis and of the target.
    """
    across = 2 if len(predictions) > 3 else 1
    width = 5.6 if across == 2 else 8.0
    figure, found = panels(len(predictions), across, (width, 1.9), extra=(0.4, 0.9))
    for axes, (method, one) in zip(found, predictions.items(), strict=True):
        _fit(axes, one, one.num_tasks - 1)
        axes.set_title(method, fontsize=10)
    last = max(one.num_tasks for one in predictions.values())
    title = f"Prediction after task {last}"
    _finish(figure, found, list(predictions.values()), labels[1], title, first=last - 1)
    label_bottom(found, across, labels[0])
    return figure


def tasks_figure(method: str, one: Predictions, labels: tuple[str, str]) -> Figure:
    """One method after each task.

    Args:
        method: its name.
        one: its predictions.
        labels: of the time axis and of the target.
    """
    across = min(_ACROSS_TASKS, one.num_tasks) if one.num_tasks > 4 else 1
    size = (2.7, 2.2) if across > 1 else (7.0, 1.8)
    figure, found = panels(one.num_tasks, across, size, extra=(0.4, 1.0))
    for task, axes in enumerate(found):
        _fit(axes, one, task)
        axes.set_title(f"after task {task + 1}", fontsize=9)
    _finish(figure, found, [one], labels[1], f"{method}: prediction after each task")
    label_bottom(found, across, labels[0])
    return figure


def value_limits(several: list[Predictions], first: int = 0) -> tuple[float, float]:
    """Ends of the vertical axis: those of the data, with room for bands but not for explosions.

    Args:
        several: predictions that share an axis.
        first: the first of the tasks after which predictions are shown.
    """
    arrays = [one.arrays for one in several]
    data = np.concatenate([a[name] for a in arrays for name in ("train_y", "test_y")])
    low, high = float(np.nanmin(data)), float(np.nanmax(data))
    room = 0.6 * (high - low) or 1.0
    reach = np.concatenate([edge.ravel() for edge in _edges(several, first)])
    reach = reach[np.isfinite(reach)]
    bottom = max(low - room, min(low, float(reach.min(initial=low))))
    top = min(high + room, max(high, float(reach.max(initial=high))))
    if all(of_counts(one) for one in several):
        return 0.0, 1.04 * top
    return bottom - _BELOW * (top - bottom), top + 0.04 * (top - bottom)


def of_counts(one: Predictions) -> bool:
    """Whether the targets are counts: whole numbers from zero, of which bands end there too."""
    data = np.concatenate([one.arrays[name] for name in ("train_y", "test_y")])
    return bool((data >= 0.0).all()) and np.array_equal(data, np.round(data))


def task_borders(one: Predictions) -> list[float]:
    """Times halfway between the tasks; none between two that overlap in time."""
    t, task = one.arrays["train_t"], one.train_task
    spans = [(t[task == k].min(), t[task == k].max()) for k in np.unique(task)]
    pairs = pairwise(spans)
    return [float(0.5 * (end + start)) for (_, end), (start, _) in pairs if end <= start]


def _edges(several: list[Predictions], first: int) -> list[np.ndarray]:
    """Lower and upper edges of the bands that are shown."""
    return [edge for one in several for edge in _band(one, slice(first, None))]


def _band(one: Predictions, tasks: int | slice) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edge after one task or several."""
    mean, sd = one.arrays["mean"][tasks], one.arrays["sd"][tasks]
    low = mean - 2 * sd
    return np.maximum(low, 0.0) if of_counts(one) else low, mean + 2 * sd


def _fit(axes: Axes, one: Predictions, task: int) -> None:
    arrays, seen = one.arrays, one.train_task
    t, counts = arrays["t"], of_counts(one)
    for border in task_borders(one):
        axes.axvline(border, color="#D0D0D0", linewidth=0.6, zorder=0)
    axes.fill_between(
        t,
        *_band(one, task),
        color=COLOURS[4],
        alpha=0.35,
        linewidth=0,
        label="mean ± 2 sd, not below 0" if counts else "mean ± 2 sd",
        zorder=1,
    )
    axes.plot(t, arrays["mean"][task], color=COLOURS[0], linewidth=1.2, zorder=3)
    for chosen, colour, label in (
        (seen < task, SEEN, "training points, earlier tasks"),
        (seen == task, GUIDE, "training points, latest task"),
    ):
        t_chosen, y_chosen = arrays["train_t"][chosen], arrays["train_y"][chosen]
        _points(axes, t_chosen, y_chosen, _MANY_SIZE if _many(one) else 2.2, colour, label)
    tests = arrays["test_task"].astype(int)
    learned = tests - one.arrays["train_task"].astype(int).min() <= task
    size = _MANY_SIZE if _many(one) else 3.0
    marker = "." if _many(one) else "x"
    axes.plot(
        arrays["test_t"][learned],
        arrays["test_y"][learned],
        linestyle="none",
        marker=marker,
        markersize=size,
        markeredgewidth=0.8,
        color=_TEST,
        label="test points of the learned tasks",
        zorder=2.5,
    )
    places = one.inducing(task)
    if places is not None:
        # Along the lower edge, wherever that is; of counts, many lie there.
        axes.plot(
            places,
            np.full(len(places), 0.965 if counts else 0.035),
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="|",
            markersize=6,
            markeredgewidth=0.9,
            color=_INDUCING,
            label="inducing locations",
            zorder=5,
        )


def _points(axes: Axes, t: np.ndarray, y: np.ndarray, size: float, colour: str, label: str) -> None:
    if t.size:
        axes.plot(
            t,
            y,
            linestyle="none",
            marker="o",
            markersize=size,
            markeredgewidth=0,
            color=colour,
            label=label,
            zorder=2,
        )


def _many(one: Predictions) -> bool:
    """Whether points of their usual size would hide everything else."""
    return len(one.arrays["train_t"]) + len(one.arrays["test_t"]) > _MANY


def _cut(several: list[Predictions], first: int, low: float, high: float) -> str:
    """How far bands go beyond an axis, or nothing."""
    edges = np.concatenate([edge.ravel() for edge in _edges(several, first)])
    lowest, highest = float(np.nanmin(edges)), float(np.nanmax(edges))
    ends = [f"down to {lowest:.3g}"] if lowest < low else []
    ends += [f"up to {highest:.3g}"] if highest > high else []
    return f"; bands go on beyond the axis, {' and '.join(ends)}" if ends else ""


def _finish(
    figure: Figure,
    found: list[Axes],
    several: list[Predictions],
    label: str,
    title: str,
    first: int = 0,
) -> None:
    low, high = value_limits(several, first)
    found[0].set_ylim(low, high)
    times = np.concatenate([one.arrays["t"] for one in several])
    found[0].set_xlim(float(times.min()), float(times.max()))
    figure.supylabel(label, fontsize=10)
    headline(figure, f"{title}{_cut(several, first, low, high)}", 11)
    # The last panel has points of every kind.
    legend(figure, found[::-1], across=3)
