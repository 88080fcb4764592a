"""The picture of a forecast, or of a fit, by a model of times and one series."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.beyond.forecasts import forecast
from ohsvgp.online import OnlineGP
from ohsvgp.plots.drawing import dots, shade
from ohsvgp.stream.arrays import as_array, real_numbers
from ohsvgp.stream.clock import sorted_times, start_clock
from probseq.figures import COLOURS, GUIDE, OLD_DATA, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forecast_plot(
    gp: OnlineGP, t: Any, y: Any, horizon: Any, *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw data, and the forecast's mean with its intervals of 50 and 95 %.

    The model has learned the data; the horizon is stamps, among the data or beyond, or a number of
    steps.
    """
    times, values = _read_series(gp, t, y)
    ahead = forecast(gp, horizon)
    figure, (axes,) = panels(1, 1, (8.0, 3.2), extra=(0.4, 1.0))
    dots(axes, times, values, "o", 2.2, color=GUIDE, label="data", zorder=2)
    for level, alpha in ((0.95, 0.25), (0.5, 0.45)):
        low, high = (edge.cpu().numpy() for edge in ahead.interval(level))
        shade(axes, ahead.stamps, low, high, alpha, label=f"{level:.0%} interval")
    mean = ahead.mean.cpu().numpy()
    axes.plot(ahead.stamps, mean, color=COLOURS[0], linewidth=1.2, label="mean of the forecast")
    axes.axvline(
        np.max(times), color=OLD_DATA, linewidth=0.8, linestyle="--", label="end of the data"
    )
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    legend(figure, [axes])
    return figure


def _read_series(gp: OnlineGP, t: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return times as users write them, in order, and values."""
    if not gp.of_time:
        raise ValueError(f"gp must be a model of times, got points of dim {gp.kernel.dim}")
    clock = gp.clock or start_clock(t, gp.time_unit)
    lengths, _ = sorted_times(clock, t)
    values = real_numbers(as_array(y, "y"), "y", "be an array of real numbers")
    if values.shape != lengths.shape:
        raise ValueError(f"y must have shape {tuple(lengths.shape)}, got {values.shape}")
    return clock.user_array(lengths), values
