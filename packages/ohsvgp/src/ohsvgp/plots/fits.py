"""Predictive mean and two standard deviations along a series, with data and inducing points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.plots.drawing import dots, shade
from probseq.figures import COLOURS, GUIDE, SEEN, headline, label_bottom, legend, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS_TASKS = 5
_BELOW = 0.14
_MANY, _MANY_SIZE = 1500, 0.8


@dataclass(frozen=True, eq=False)
class Fits:
    """Predictions along a series after each of K tasks, and its points; numpy arrays.

    Attributes:
        t: times of the predictions, shape (g,); numbers or datetime64.
        mean: of a new y after each task, shape (K, g).
        sd: its standard deviation, shape (K, g).
        train: times, values and tasks, counted from 0, of the points that are learned.
        test: the same of those that are not; None for none.
        inducing: times of inducing points after each task, shape (K, M), where NaN are none; None
            where inducing variables are no points.
    """

    t: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    train: tuple[np.ndarray, np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    inducing: np.ndarray | None = None

    @property
    def points(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Those that are learned, and those that are not if there are any."""
        return [self.train] if self.test is None else [self.train, self.test]

    @property
    def values(self) -> np.ndarray:
        """Values of all points."""
        return np.concatenate([y for _, y, _ in self.points])

    @property
    def of_counts(self) -> bool:
        """Whether the values are whole numbers from zero, where bands end too."""
        values = self.values
        return bool((values >= 0.0).all()) and np.array_equal(values, np.round(values))

    def band(self, tasks: int | slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges two standard deviations away, after one task or several."""
        low, high = (self.mean[tasks] + sign * 2 * self.sd[tasks] for sign in (-1, 1))
        return np.maximum(low, 0.0) if self.of_counts else low, high

    def borders(self) -> list[Any]:
        """Return times halfway between the tasks; none between two that overlap in time."""
        t, _, task = self.train
        spans = [(t[task == k].min(), t[task == k].max()) for k in np.unique(task)]
        pairs = pairwise(spans)
        return [end + (start - end) / 2 for (_, end), (start, _) in pairs if end <= start]


def after_tasks_plot(fits: Fits, *, labels: tuple[str, str], title: str = "") -> "Figure":
    """Draw the predictions after each task, in a panel each.

    Args:
        fits: predictions after each task.
        labels: of time and values.
        title: of the figure.
    """
    tasks = len(fits.mean)
    shown = {f"after task {task + 1}": (fits, task) for task in range(tasks)}
    if tasks > 4:
        across, size = min(_ACROSS_TASKS, tasks), (2.7, 2.2)
    else:
        across, size = 1, (7.0, 1.8)
    return fits_plot(shown, labels=labels, title=title, across=across, size=size)


def fits_plot(
    shown: Mapping[str, tuple[Fits, int]],
    *,
    labels: tuple[str, str],
    title: str = "",
    across: int = 1,
    size: tuple[float, float] = (8.0, 1.9),
) -> "Figure":
    """Draw predictions after a task each, in panels with the same axes.

    Args:
        shown: by the panel's title, predictions and the task after which they are shown.
        labels: of time and values.
        title: of the figure.
        across: panels side by side.
        size: of a panel in inches.
    """
    figure, grid = panels(len(shown), across, size, extra=(0.4, 1.0))
    for axes, (name, (fits, task)) in zip(grid, shown.items(), strict=True):
        _draw(axes, fits, task)
        axes.set_title(name, fontsize=10 if across == 1 else 9)
    several = list(shown.values())
    low, high = value_limits(several)
    grid[0].set_ylim(low, high)
    times = np.concatenate([fits.t for fits, _ in several])
    grid[0].set_xlim(times.min(), times.max())
    figure.supylabel(labels[1], fontsize=10)
    headline(figure, f"{title}{_cut(several, low, high)}", 11)
    label_bottom(grid, across, labels[0])
    # The last panel has points of every kind.
    legend(figure, grid[::-1], across=3)
    return figure


def value_limits(several: Sequence[tuple[Fits, int]]) -> tuple[float, float]:
    """Return ends of the vertical axis: the data's, with room for bands but not for explosions."""
    data = np.concatenate([fits.values for fits, _ in several])
    low, high = float(np.nanmin(data)), float(np.nanmax(data))
    room = 0.6 * (high - low) or 1.0
    reach = np.concatenate([edge for fits, task in several for edge in fits.band(task)])
    reach = reach[np.isfinite(reach)]
    bottom = max(low - room, min(low, float(reach.min(initial=low))))
    top = min(high + room, max(high, float(reach.max(initial=high))))
    if all(fits.of_counts for fits, _ in several):
        return 0.0, 1.04 * top
    return bottom - _BELOW * (top - bottom), top + 0.04 * (top - bottom)


def _cut(several: Sequence[tuple[Fits, int]], low: float, high: float) -> str:
    """Say how far bands go beyond an axis, or nothing."""
    edges = np.concatenate([edge for fits, task in several for edge in fits.band(task)])
    lowest, highest = float(np.nanmin(edges)), float(np.nanmax(edges))
    ends = [f"down to {lowest:.3g}"] if lowest < low else []
    ends += [f"up to {highest:.3g}"] if highest > high else []
    return f"; bands go on beyond the axis, {' and '.join(ends)}" if ends else ""


def _draw(axes: "Axes", fits: Fits, task: int) -> None:
    counts = fits.of_counts
    many = sum(len(t) for t, _, _ in fits.points) > _MANY  # they would hide everything else
    for border in fits.borders():
        axes.axvline(border, color="#D0D0D0", linewidth=0.6, zorder=0)
    band = "mean ± 2 sd, not below 0" if counts else "mean ± 2 sd"
    shade(axes, fits.t, *fits.band(task), 0.35, label=band, zorder=1)
    axes.plot(fits.t, fits.mean[task], color=COLOURS[0], linewidth=1.2, zorder=3)
    t, y, number = fits.train
    style: dict[str, Any] = {"markeredgewidth": 0.0, "zorder": 2}
    for chosen, colour, label in (
        (number < task, SEEN, "training points, earlier tasks"),
        (number == task, GUIDE, "training points, latest task"),
    ):
        if chosen.any():
            size = _MANY_SIZE if many else 2.2
            dots(axes, t[chosen], y[chosen], "o", size, color=colour, label=label, **style)
    if fits.test is not None:
        t, y, number = fits.test
        learned = number <= task
        marker, size = (".", _MANY_SIZE) if many else ("x", 3.0)
        style = {"markeredgewidth": 0.8, "color": COLOURS[1], "zorder": 2.5}
        label = "test points of the learned tasks"
        dots(axes, t[learned], y[learned], marker, size, label=label, **style)
    if fits.inducing is not None:
        places = fits.inducing[task][~np.isnan(fits.inducing[task])]
        # Along the lower edge, wherever that is; of counts, many lie there.
        edge = np.full(len(places), 0.965 if counts else 0.035)
        style = {"markeredgewidth": 0.9, "color": COLOURS[3], "zorder": 5}
        style["transform"] = axes.get_xaxis_transform()
        dots(axes, places, edge, "|", 6.0, label="inducing locations", **style)
