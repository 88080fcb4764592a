"""Forecasts beyond the data, with their intervals."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ohsvgp.online import OnlineGP
from ohsvgp.plots.fits import read_series
from probseq.figures import COLOURS, GUIDE, SEEN, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forecast_plot(
    gp: OnlineGP, t: Any, y: Any, horizon: Any, *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw data, and the forecast's mean with its intervals of 50 and 95 %.

    Args:
        gp: a model of times and one series that has learned the data; it stays as it is.
        t: times of the data that are shown.
        y: their values, shape (n,).
        horizon: of ``OnlineGP.forecast``: stamps, or a number of steps.
        labels: of time and values.

    Raises:
        ValueError: a model of points, or a horizon or data that it would not take.
        MissingExtraError: matplotlib is not installed.
    """
    times, values = read_series(gp, t, y)
    forecast = gp.forecast(horizon)
    figure, (axes,) = panels(1, 1, (8.0, 3.2), extra=(0.4, 1.0))
    axes.plot(times, values, "o", color=GUIDE, markersize=2.2, label="data", zorder=2)
    for level, alpha in ((0.95, 0.25), (0.5, 0.45)):
        low, high = (edge.cpu().numpy() for edge in forecast.interval(level))
        style: dict[str, Any] = {"color": COLOURS[4], "alpha": alpha, "linewidth": 0}
        axes.fill_between(forecast.stamps, low, high, label=f"{level:.0%} interval", **style)
    mean = torch.as_tensor(forecast.mean).cpu().numpy()
    axes.plot(forecast.stamps, mean, color=COLOURS[0], linewidth=1.2, label="mean of the forecast")
    axes.axvline(np.max(times), color=SEEN, linewidth=0.8, linestyle="--", label="end of the data")
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    legend(figure, [axes])
    return figure
