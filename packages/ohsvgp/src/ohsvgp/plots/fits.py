"""Predictive mean and two standard deviations along a series, with data and inducing points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.online import OnlineGP
from ohsvgp.stream.arrays import as_array, real_numbers
from ohsvgp.stream.clock import sorted_times, start_clock
from probseq.checks import check_counts
from probseq.figures import COLOURS, GUIDE, SEEN, headline, label_bottom, legend, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS_TASKS = 5
_BELOW = 0.14
_MANY, _MANY_SIZE = 1500, 0.8
_GRID = 400


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
    def parts(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Points that are learned, and those that are not if there are any."""
        return [self.train] if self.test is None else [self.train, self.test]

    @property
    def values(self) -> np.ndarray:
        """Values of all points."""
        return np.concatenate([y for _, y, _ in self.parts])

    @property
    def of_counts(self) -> bool:
        """Whether the values are whole numbers from zero, where bands end too."""
        values = self.values
        return bool((values >= 0.0).all()) and np.array_equal(values, np.round(values))

    def band(self, tasks: int | slice) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper edge, two standard deviations away, after one task or several."""
        low, high = (self.mean[tasks] + sign * 2 * self.sd[tasks] for sign in (-1, 1))
        return np.maximum(low, 0.0) if self.of_counts else low, high

    def borders(self) -> list[Any]:
        """Times halfway between the tasks; none between two that overlap in time."""
        t, _, task = self.train
        spans = [(t[task == k].min(), t[task == k].max()) for k in np.unique(task)]
        pairs = pairwise(spans)
        return [end + (start - end) / 2 for (_, end), (start, _) in pairs if end <= start]


def fit_plot(
    gp: OnlineGP,
    t: Any,
    y: Any,
    *,
    labels: tuple[str, str] = ("t", "y"),
    num_points: int = _GRID,
) -> "Figure":
    """Draw a model's prediction of new values over the time of some data, and the data.

    Args:
        gp: a model of times and one series; it stays as it is.
        t: times of the data, numbers or calendar stamps.
        y: values, shape (n,).
        labels: of time and values.
        num_points: times that are predicted.

    Raises:
        ValueError: a model of points, or data that it would not take.
        MissingExtraError: matplotlib is not installed.
    """
    check_counts(num_points=num_points)
    times, values = read_series(gp, t, y)
    grid = _between(times, num_points)
    mean, sd, inducing = _predict(gp, grid)
    seen = (times, values, np.zeros(len(times), dtype=int))
    fits = Fits(grid, mean[None], sd[None], seen, None, _stack([inducing]))
    return fits_plot({"": (fits, 0)}, labels=labels, size=(8.0, 3.2))


def tasks_plot(
    gp: OnlineGP,
    tasks: Sequence[tuple[Any, Any]],
    *,
    labels: tuple[str, str] = ("t", "y"),
    num_points: int = _GRID,
) -> "Figure":
    """Draw the prediction after each task, learned by copies of a model.

    Args:
        gp: a model of times and one series; it stays as it is.
        tasks: times and values of each.
        labels: of time and values.
        num_points: times that are predicted.

    Raises:
        ValueError: no tasks, a model of points, or data that it does not take.
        MissingExtraError: matplotlib is not installed.
    """
    check_counts(tasks=len(tasks), num_points=num_points)
    read = [read_series(gp, t, y) for t, y in tasks]
    times, values = (np.concatenate(part) for part in zip(*read, strict=True))
    numbers = np.repeat(np.arange(len(read)), [len(t) for t, _ in read])
    grid, found = _between(times, num_points), []
    for t, y in tasks:
        gp = gp.updated(t, y)
        found.append(_predict(gp, grid))
    mean, sd, inducing = zip(*found, strict=True)
    fits = Fits(
        grid, np.stack(mean), np.stack(sd), (times, values, numbers), None, _stack(inducing)
    )
    return after_tasks_plot(fits, labels=labels)


def after_tasks_plot(fits: Fits, *, labels: tuple[str, str], title: str = "") -> "Figure":
    """Draw the predictions after each task, in a panel each.

    Args:
        fits: predictions after each task.
        labels: of time and values.
        title: of the figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
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

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, found = panels(len(shown), across, size, extra=(0.4, 1.0))
    for axes, (name, (fits, task)) in zip(found, shown.items(), strict=True):
        _draw(axes, fits, task)
        axes.set_title(name, fontsize=10 if across == 1 else 9)
    several = list(shown.values())
    low, high = value_limits(several)
    found[0].set_ylim(low, high)
    times = np.concatenate([fits.t for fits, _ in several])
    found[0].set_xlim(times.min(), times.max())
    figure.supylabel(labels[1], fontsize=10)
    headline(figure, f"{title}{_cut(several, low, high)}", 11)
    label_bottom(found, across, labels[0])
    # The last panel has points of every kind.
    legend(figure, found[::-1], across=3)
    return figure


def value_limits(several: Sequence[tuple[Fits, int]]) -> tuple[float, float]:
    """Ends of the vertical axis: those of the data, with room for bands but not for explosions."""
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
    """How far bands go beyond an axis, or nothing."""
    edges = np.concatenate([edge for fits, task in several for edge in fits.band(task)])
    lowest, highest = float(np.nanmin(edges)), float(np.nanmax(edges))
    ends = [f"down to {lowest:.3g}"] if lowest < low else []
    ends += [f"up to {highest:.3g}"] if highest > high else []
    return f"; bands go on beyond the axis, {' and '.join(ends)}" if ends else ""


def _draw(axes: "Axes", fits: Fits, task: int) -> None:
    counts = fits.of_counts
    many = sum(len(t) for t, _, _ in fits.parts) > _MANY  # they would hide everything else
    for border in fits.borders():
        axes.axvline(border, color="#D0D0D0", linewidth=0.6, zorder=0)
    band = "mean ± 2 sd, not below 0" if counts else "mean ± 2 sd"
    style: dict[str, Any] = {"color": COLOURS[4], "alpha": 0.35, "linewidth": 0, "zorder": 1}
    axes.fill_between(fits.t, *fits.band(task), label=band, **style)
    axes.plot(fits.t, fits.mean[task], color=COLOURS[0], linewidth=1.2, zorder=3)
    t, y, own = fits.train
    small = _MANY_SIZE if many else 2.2
    for chosen, colour, label in (
        (own < task, SEEN, "training points, earlier tasks"),
        (own == task, GUIDE, "training points, latest task"),
    ):
        if chosen.any():
            _points(axes, t[chosen], y[chosen], "o", small, 0.0, color=colour, label=label)
    if fits.test is not None:
        t, y, own = fits.test
        marker, size = (".", _MANY_SIZE) if many else ("x", 3.0)
        label = "test points of the learned tasks"
        learned = own <= task
        _points(
            axes,
            t[learned],
            y[learned],
            marker,
            size,
            0.8,
            color=COLOURS[1],
            label=label,
            order=2.5,
        )
    if fits.inducing is not None:
        places = fits.inducing[task][~np.isnan(fits.inducing[task])]
        # Along the lower edge, wherever that is; of counts, many lie there.
        edge = np.full(len(places), 0.965 if counts else 0.035)
        axes.plot(
            places,
            edge,
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="|",
            markersize=6,
            markeredgewidth=0.9,
            color=COLOURS[3],
            label="inducing locations",
            zorder=5,
        )


def _points(
    axes: "Axes",
    t: np.ndarray,
    y: np.ndarray,
    marker: str,
    size: float,
    edge: float,
    *,
    color: str,
    label: str,
    order: float = 2,
) -> None:
    axes.plot(
        t,
        y,
        linestyle="none",
        marker=marker,
        markersize=size,
        markeredgewidth=edge,
        color=color,
        label=label,
        zorder=order,
    )


def read_series(gp: OnlineGP, t: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times as users give them, in order, and values."""
    if not gp.of_time:
        raise ValueError(f"gp must be a model of times, got points of dim {gp.kernel.dim}")
    clock = gp.clock or start_clock(t, gp.time_unit)
    lengths, _ = sorted_times(clock, t)
    values = real_numbers(as_array(y, "y"), "y", "be an array of real numbers")
    if values.shape != lengths.shape:
        raise ValueError(f"y must have shape {tuple(lengths.shape)}, got {values.shape}")
    return np.array([clock.user(length) for length in lengths.tolist()]), values


def _between(times: np.ndarray, count: int) -> np.ndarray:
    first, last = times.min(), times.max()
    return first + (last - first) * np.arange(count) / max(count - 1, 1)


def _predict(gp: OnlineGP, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Mean and deviation of new values, and inducing points."""
    law = gp.predict(grid, include_noise=True)
    points, places = None if gp.state is None else gp.state.inducing.points, None
    if points is not None and gp.clock is not None:
        places = np.array([gp.clock.user(place) for place in points[:, 0].tolist()])
    return law.mean.numpy(), law.variance.clamp_min(0.0).sqrt().numpy(), places


def _stack(places: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Inducing points after each task; early tasks may have fewer."""
    known = [one for one in places if one is not None]
    if not known or len(known) < len(places):
        return None
    nothing = np.datetime64("NaT") if known[0].dtype.kind == "M" else np.nan
    most = max(map(len, known))
    return np.stack([np.pad(one, (0, most - len(one)), constant_values=nothing) for one in known])
