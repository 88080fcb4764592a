"""What the picture of a forecast shows."""

import numpy as np
import torch

from ohsvgp import LegS, OnlineGP, Poisson, forecast
from ohsvgp.plots import forecast_plot
from probseq.kernels import RBF

T = torch.arange(20, dtype=torch.float64)


def test_the_picture_shows_data_their_end_and_the_forecasts_intervals() -> None:
    y = (T % 4).round()
    gp = OnlineGP(RBF(1, lengthscale=4.0), Poisson(), LegS(12))
    gp.update(T, y)
    (axes,) = forecast_plot(gp, T[5:], y[5:], 3).axes
    ahead = forecast(gp, 3)
    data, mean, end = axes.lines
    np.testing.assert_array_equal(data.get_xydata(), torch.stack([T[5:], y[5:]], -1))
    np.testing.assert_allclose(mean.get_xydata()[:, 0], ahead.stamps)
    np.testing.assert_allclose(mean.get_xydata()[:, 1], ahead.mean)
    assert list(end.get_xdata()) == [19.0, 19.0]
    for band, level in zip(axes.collections, (0.95, 0.5), strict=True):
        corners = band.get_paths()[0].vertices
        low, high = ahead.interval(level)
        assert {tuple(point) for point in corners} == {
            (t, float(edge))
            for side in (low, high)
            for t, edge in zip(ahead.stamps, side, strict=True)
        }
