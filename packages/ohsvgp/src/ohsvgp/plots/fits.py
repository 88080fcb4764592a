"""Predictive mean and two standard deviations along a series, with data and inducing points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.plots.drawing import dots, shade
from probseq.figures import COLOURS, GUIDE, OLD_DATA, headline, label_bottom, legend, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS_TASKS, _BELOW = 5, 0.14
_MANY, _MANY_SIZE = 1500, 0.8


@dataclass(frozen=True, eq=False)
class SeriesFit:
    """Predictions along a series after each of K tasks, and its points; numpy arrays."""

    t: np.ndarray  # times of the predictions, shape (g,); numbers or datetime64
    mean: np.ndarray  # of a new y after each task, shape (K, g)
    sd: np.ndarray  # its standard deviation, shape (K, g)
    # times, values and tasks, counted from 0, of the points that are learned
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...] | None = None  # the same of those that are not; None for none
    # times of inducing points after each task, shape (K, M), where NaN are none; None where
    # inducing variables are no points
    inducing: np.ndarray | None = None

    @property
    def points(self) -> list[tuple[np.ndarray, ...]]:
        """Those that are learned, and those that are not if there are any."""
        return [self.train] if self.test is None else [self.train, self.test]

    @property
    def values(self) -> np.ndarray:
        """Values of all points."""
        return np.concatenate([y for _, y, _ in self.points])

    @property
    def of_counts(self) -> bool:
        """True if the values are whole numbers from zero, where bands end too."""
        values = self.values
        return bool((values >= 0.0).all()) and np.array_equal(values, np.round(values))

    def band(self, tasks: int | slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges two standard deviations away, after one task or several."""
        low, high = (self.mean[tasks] + sign * 2 * self.sd[tasks] for sign in (-1, 1))
        return np.maximum(low, 0.0) if self.of_counts else low, high


def after_tasks_plot(series: SeriesFit, *, labels: tuple[str, str], title: str = "") -> "Figure":
    """Draw the predictions after each task, in a panel each; labels are of time and values."""
    tasks = len(series.mean)
    predictions = {f"after task {task + 1}": (series, task) for task in range(tasks)}
    across, size = (_ACROSS_TASKS, (2.7, 2.2)) if tasks >= _ACROSS_TASKS else (1, (7.0, 1.8))
    return series_plot(predictions, labels=labels, title=title, across=across, size=size)


def series_plot(
    predictions: Mapping[str, tuple[SeriesFit, int]],
    *,
    labels: tuple[str, str],
    title: str = "",
    across: int = 1,
    size: tuple[float, float] = (8.0, 1.9),
) -> "Figure":
    """Draw predictions and after which task, by the panel's title; a panel has a size in inches."""
    figure, grid = panels(len(predictions), across, size, extra=(0.4, 1.0))
    for axes, (name, (series, task)) in zip(grid, predictions.items(), strict=True):
        _draw(axes, series, task)
        axes.set_title(name, fontsize=10 if across == 1 else 9)
    several = list(predictions.values())
    low, high = value_limits(several)
    grid[0].set_ylim(low, high)
    times = np.concatenate([series.t for series, _ in several])
    grid[0].set_xlim(times.min(), times.max())
    figure.supylabel(labels[1], fontsize=10)
    headline(figure, title, 11)
    label_bottom(grid, across, labels[0])
    # The last panel has points of every kind.
    legend(figure, grid[::-1], across=3)
    return figure


def value_limits(several: Sequence[tuple[SeriesFit, int]]) -> tuple[float, float]:
    """Return ends of the vertical axis: the data's, with room for bands but not for explosions."""
    data = np.concatenate([series.values for series, _ in several])
    low, high = float(np.nanmin(data)), float(np.nanmax(data))
    room = 0.6 * (high - low) or 1.0
    reach = np.concatenate([edge for series, task in several for edge in series.band(task)])
    reach = reach[np.isfinite(reach)]
    bottom = max(low - room, min(low, float(reach.min(initial=low))))
    top = min(high + room, max(high, float(reach.max(initial=high))))
    if all(series.of_counts for series, _ in several):
        return 0.0, 1.04 * top
    return bottom - _BELOW * (top - bottom), top + 0.04 * (top - bottom)


def _draw(axes: "Axes", series: SeriesFit, task: int) -> None:
    counts = series.of_counts
    many = sum(len(t) for t, _, _ in series.points) > _MANY  # they would hide everything else
    band = "mean ± 2 sd, not below 0" if counts else "mean ± 2 sd"
    shade(axes, series.t, *series.band(task), 0.35, label=band, zorder=1)
    axes.plot(series.t, series.mean[task], color=COLOURS[0], linewidth=1.2, zorder=3)
    t, y, number = series.train
    style: dict[str, Any] = {"markeredgewidth": 0.0, "zorder": 2}
    for chosen, colour, label in (
        (number < task, OLD_DATA, "training points, earlier tasks"),
        (number == task, GUIDE, "training points, latest task"),
    ):
        if chosen.any():
            size = _MANY_SIZE if many else 2.2
            dots(axes, t[chosen], y[chosen], "o", size, color=colour, label=label, **style)
    if series.test is not None:
        t, y, number = series.test
        learned = number <= task
        marker, size = (".", _MANY_SIZE) if many else ("x", 3.0)
        style = {"markeredgewidth": 0.8, "color": COLOURS[1], "zorder": 2.5}
        label = "test points of the learned tasks"
        dots(axes, t[learned], y[learned], marker, size, label=label, **style)
    if series.inducing is not None:
        inducing = series.inducing[task][~np.isnan(series.inducing[task])]
        # Along the lower edge, wherever that is; of counts, many lie there.
        edge = np.full(len(inducing), 0.965 if counts else 0.035)
        style = {"markeredgewidth": 0.9, "color": COLOURS[3], "zorder": 5}
        style["transform"] = axes.get_xaxis_transform()
        dots(axes, inducing, edge, "|", 6.0, label="inducing locations", **style)
