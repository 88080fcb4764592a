"""Pictures of one model: its fit, its forecast and its memory.

A model is of times, numbers or calendar stamps, and of one series, and stays as it is; labels are
of time and values.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ohsvgp.beyond.forecasts import forecast
from ohsvgp.likelihoods import Gaussian
from ohsvgp.online import OnlineGP
from ohsvgp.plots.drawing import dots, shade
from ohsvgp.plots.fits import Fits, after_tasks_plot, fits_plot
from ohsvgp.state import UpdateInfo
from ohsvgp.stream.arrays import as_array, real_numbers
from ohsvgp.stream.clock import sorted_times, start_clock
from probseq.checks import check_counts
from probseq.figures import COLOURS, GUIDE, SEEN, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID, _MEMORY_GRID = 400, 600


def fit_plot(gp: OnlineGP, t: Any, y: Any, *, labels: tuple[str, str] = ("t", "y")) -> "Figure":
    """Draw a model's prediction of new values over the time of some data, and the data.

    Args:
        gp: a model of times and one series; it stays as it is.
        t: times of the data, numbers or calendar stamps.
        y: values, shape (n,).
        labels: of time and values.

    Raises:
        ValueError: a model of points, or data that it would not take.
    """
    times, values = _read_series(gp, t, y)
    grid = _between(times)
    fits = _fits(grid, [_predict(gp, grid)], (times, values, np.zeros(len(times), dtype=int)))
    return fits_plot({"": (fits, 0)}, labels=labels, size=(8.0, 3.2))


def tasks_plot(
    gp: OnlineGP, tasks: Sequence[tuple[Any, Any]], *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw the prediction after each task, learned by copies of a model.

    Args:
        gp: a model of times and one series; it stays as it is.
        tasks: times and values of each.
        labels: of time and values.

    Raises:
        ValueError: no tasks, a model of points, or data that it does not take.
    """
    check_counts(tasks=len(tasks))
    series = [_read_series(gp, t, y) for t, y in tasks]
    times, values = (np.concatenate(columns) for columns in zip(*series, strict=True))
    numbers = np.repeat(np.arange(len(series)), [len(t) for t, _ in series])
    grid, predictions = _between(times), list[_Prediction]()
    for t, y in tasks:
        gp = gp.updated(t, y)
        predictions.append(_predict(gp, grid))
    return after_tasks_plot(_fits(grid, predictions, (times, values, numbers)), labels=labels)


def forecast_plot(
    gp: OnlineGP, t: Any, y: Any, horizon: Any, *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw data, and the forecast's mean with its intervals of 50 and 95 %.

    Args:
        gp: a model of times and one series that has learned the data; it stays as it is.
        t: times of the data that are shown.
        y: their values, shape (n,).
        horizon: of ``ohsvgp.forecast``: stamps, or a number of steps.
        labels: of time and values.

    Raises:
        ValueError: a model of points, or a horizon or data that it would not take.
    """
    times, values = _read_series(gp, t, y)
    ahead = forecast(gp, horizon)
    figure, (axes,) = panels(1, 1, (8.0, 3.2), extra=(0.4, 1.0))
    dots(axes, times, values, "o", 2.2, color=GUIDE, label="data", zorder=2)
    for level, alpha in ((0.95, 0.25), (0.5, 0.45)):
        low, high = (edge.cpu().numpy() for edge in ahead.interval(level))
        shade(axes, ahead.stamps, low, high, alpha, label=f"{level:.0%} interval")
    mean = torch.as_tensor(ahead.mean).cpu().numpy()
    axes.plot(ahead.stamps, mean, color=COLOURS[0], linewidth=1.2, label="mean of the forecast")
    axes.axvline(np.max(times), color=SEEN, linewidth=0.8, linestyle="--", label="end of the data")
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    legend(figure, [axes])
    return figure


def memory_plot(
    gp: OnlineGP, infos: Sequence[UpdateInfo] = (), *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw the standard deviation of f along the past, and what each update lost.

    Where the deviation is near the prior's, without a ``mean``, the past is forgotten; where it is
    below that of the noise it is known better than by an observation. Below, in nats, what moves of
    the inducing variables lost of old knowledge, and what they did not take in of new observations.

    Args:
        gp: a model of times and one series that has learned some; it stays as it is.
        infos: what its updates returned, in order; none for the first panel alone.
        labels: of time and values.

    Raises:
        ValueError: a model of points, of several series, or one without data.
    """
    state = gp.state
    if state is None or not gp.of_time or state.site.shift.ndim != 1:
        raise ValueError("gp must be a model of times and one series that has learned data")
    x = torch.linspace(0.0, state.length, _MEMORY_GRID, dtype=torch.float64)[:, None]
    stamps = gp.user_inputs(x)
    figure, grid = panels(2 if infos else 1, 1, (8.0, 2.4), shared=False, extra=(0.4, 1.0))
    with torch.no_grad():
        sd = gp.process.predict(state, x.to(gp.kernel.like)).variance.clamp_min(0.0).sqrt()
        prior = gp.kernel.diag(x.to(gp.kernel.like)).sqrt()
        grid[0].plot(stamps, prior.cpu(), color=GUIDE, linestyle="--", label="prior")
        grid[0].plot(stamps, sd.cpu(), color=COLOURS[0], linewidth=1.2, label="posterior")
        if isinstance(gp.likelihood, Gaussian):
            noise = float(gp.likelihood.noise.sqrt())
            grid[0].axhline(noise, color=COLOURS[1], linestyle=":", label="noise")
    grid[0].set_ylabel(f"deviation of {labels[1]}", fontsize=9)
    if infos:
        ends = np.array([info.t_end for info in infos])
        lost = [float(info.lost_information) for info in infos]
        missed = [float(info.unexplained) for info in infos]
        grid[1].plot(ends, lost, "o-", color=COLOURS[2], label="lost of old knowledge")
        grid[1].plot(ends, missed, "s-", color=COLOURS[3], label="not taken in of new observations")
        grid[1].set_ylabel("nats an update", fontsize=9)
        grid[1].sharex(grid[0])
    for axes in grid:
        axes.set_ylim(bottom=0.0)
    grid[-1].set_xlabel(labels[0], fontsize=9)
    legend(figure, grid)
    return figure


# Mean and deviation of new values, and times of inducing points where there are any.
_Prediction = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _read_series(gp: OnlineGP, t: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return times as users write them, in order, and values."""
    if not gp.of_time:
        raise ValueError(f"gp must be a model of times, got points of dim {gp.kernel.dim}")
    clock = gp.clock or start_clock(t, gp.time_unit)
    lengths, _ = sorted_times(clock, t)
    values = real_numbers(as_array(y, "y"), "y", "be an array of real numbers")
    if values.shape != lengths.shape:
        raise ValueError(f"y must have shape {tuple(lengths.shape)}, got {values.shape}")
    return np.array([clock.user(length) for length in lengths.tolist()]), values


def _between(times: np.ndarray) -> np.ndarray:
    first, last = times.min(), times.max()
    return first + (last - first) * np.arange(_GRID) / (_GRID - 1)


def _predict(gp: OnlineGP, grid: np.ndarray) -> _Prediction:
    prediction = gp.predict(grid, include_noise=True)
    points, places = None if gp.state is None else gp.state.inducing.points, None
    if points is not None and gp.clock is not None:
        places = np.array([gp.clock.user(place) for place in points[:, 0].tolist()])
    return prediction.mean.numpy(), prediction.variance.clamp_min(0.0).sqrt().numpy(), places


def _fits(
    grid: np.ndarray,
    predictions: Sequence[_Prediction],
    train: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Fits:
    """Return what was predicted after each task; early tasks may have fewer inducing points."""
    mean, sd, places = zip(*predictions, strict=True)
    known, inducing = [one for one in places if one is not None], None
    if known and len(known) == len(places):
        nothing = np.datetime64("NaT") if known[0].dtype.kind == "M" else np.nan
        most = max(map(len, known))
        padded = [np.pad(one, (0, most - len(one)), constant_values=nothing) for one in known]
        inducing = np.stack(padded)
    return Fits(grid, np.stack(mean), np.stack(sd), train, None, inducing)
