"""Forecasts: stamps, laws of new values, and where the prior answers."""

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch

from ohsvgp import (
    ExtrapolationWarning,
    Gaussian,
    LegS,
    NegativeBinomial,
    OnlineGP,
    PivotedCholesky,
    Poisson,
    Trend,
    forecast,
)
from probseq.kernels import RBF, White

DOUBLE = torch.float64
T = torch.arange(40, dtype=DOUBLE) / 4
DAYS = np.datetime64("2024-01-01") + np.arange(40).astype("timedelta64[D]")


def model(likelihood=None, **options) -> OnlineGP:
    return OnlineGP(RBF(1, lengthscale=1.5), likelihood or Gaussian(0.04), LegS(20), **options)


def learned(likelihood=None, y=None, **options) -> OnlineGP:
    gp = model(likelihood, **options)
    gp.update(T, T.sin() if y is None else y)
    return gp


def test_a_gaussian_forecast_is_that_of_the_exact_process() -> None:
    noise = torch.tensor(0.04, dtype=DOUBLE)
    gp = OnlineGP(RBF(1, lengthscale=1.5), Gaussian(noise), PivotedCholesky(40))
    gp.update(T, T.sin())
    new = torch.tensor([3.3, 9.9, 10.4], dtype=DOUBLE)
    kernel = RBF(1, lengthscale=1.5).double()
    x, z = T[:, None], new[:, None]
    with torch.no_grad():
        gain = torch.linalg.solve(kernel(x, x) + 0.04 * torch.eye(len(x)).double(), kernel(x, z)).mT
        mean, covariance = gain @ T.sin(), kernel(z, z) - gain @ kernel(x, z)
    found = forecast(gp, new)
    # The jitter is 1e-8 of the prior's variance.
    torch.testing.assert_close(found.latent.mean, mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.latent.covariance, covariance, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.variance, covariance.diagonal() + 0.04, atol=1e-6, rtol=0)
    low, high = found.interval(0.9)
    law = scipy.stats.norm(found.mean.numpy(), found.variance.sqrt().numpy())
    np.testing.assert_allclose(low, law.ppf(0.05), rtol=1e-10)
    np.testing.assert_allclose(high, law.ppf(0.95), rtol=1e-10)


def test_steps_go_on_at_the_median_of_the_latest_gaps() -> None:
    gp = learned()
    np.testing.assert_allclose(forecast(gp, 3).stamps, [10.0, 10.25, 10.5])
    gp.update([11.0, 11.2], [0.0, 0.0])  # one long gap and one short
    np.testing.assert_allclose(forecast(gp, 2).stamps, [11.45, 11.7])
    np.testing.assert_allclose(forecast(gp, 2, step=0.1).stamps, [11.3, 11.4])
    assert torch.equal(forecast(gp, 2).mean, forecast(gp, forecast(gp, 2).stamps).mean)


def test_calendar_stamps_go_on_as_calendar_stamps() -> None:
    gp = OnlineGP(RBF(1, lengthscale=6.0), Gaussian(0.04), LegS(20))
    gp.update(DAYS, np.sin(np.arange(40) / 4))
    expected = np.array(["2024-02-10", "2024-02-11"], dtype="datetime64[ns]")
    assert (forecast(gp, 2).stamps == expected).all()
    assert (forecast(gp, ["2024-02-10", "2024-02-11"]).stamps == expected).all()
    assert forecast(gp, 1, step=0.5).stamps[0] == np.datetime64("2024-02-09T12")


def test_a_forecast_and_the_model_before_an_update_stay_as_they_are() -> None:
    gp = learned()
    ahead = forecast(gp, 2)
    before = ahead.quantile(0.9)
    later = gp.updated([10.0], [5.0])
    assert (gp.spacing.last, later.spacing.last) == (9.75, 10.0)
    with torch.no_grad():
        gp.likelihood.raw_noise.add_(1.0)
    gp.update([10.0], [5.0])
    assert torch.equal(ahead.quantile(0.9), before)


@pytest.mark.parametrize("likelihood", [Gaussian(0.04), Poisson(), NegativeBinomial(5.0)])
def test_draws_have_the_forecasts_mean_and_quantiles(likelihood) -> None:
    y = torch.poisson((1 + T.sin()).exp(), torch.Generator().manual_seed(0))
    ahead = forecast(learned(likelihood, y), 4)
    draws = ahead.sample(20_000, torch.Generator().manual_seed(1))
    assert draws.shape == (20_000, 4)
    # Four standard errors.
    error = 4 * (draws.var(0) / 20_000).sqrt()
    assert ((draws.mean(0) - ahead.mean).abs() < error).all()
    for p in (0.1, 0.5, 0.9):
        edge, share = ahead.quantile(p), 4 * math.sqrt(p * (1 - p) / 20_000)
        assert ((draws <= edge).double().mean(0) > p - share).all()
        assert ((draws < edge).double().mean(0) < p + share).all()


def test_draws_are_joint_over_the_stamps() -> None:
    ahead = forecast(learned(), [11.0, 11.2])
    draws = ahead.sample(40_000, torch.Generator().manual_seed(1))
    noise = 0.04 * torch.eye(2, dtype=DOUBLE)
    expected = ahead.latent.covariance + noise
    # Four standard errors of a covariance of at most 1 are .03.
    torch.testing.assert_close(draws.T.cov(), expected, atol=0.03, rtol=0)


def test_many_series_and_levels_are_leading_dimensions() -> None:
    gp = learned(y=torch.stack([T.sin(), T.cos()]), dtype=torch.float32)
    ahead = forecast(gp, 3)
    several = ahead.quantile([0.1, 0.5])
    assert (several.shape, several.dtype) == ((2, 2, 3), torch.float32)
    assert torch.equal(several[1], ahead.quantile(0.5))
    assert ahead.sample(5).shape == (5, 2, 3)
    alone = forecast(learned(y=T.cos()), 3)
    torch.testing.assert_close(ahead.mean[1].double(), alone.mean, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("plain_calls")
def test_far_beyond_the_data_a_forecast_warns_once_and_says_from_where() -> None:
    gp = learned()
    with warnings.catch_warnings(action="error"):
        forecast(gp, [9.8, 10.5])
    with pytest.warns(ExtrapolationWarning, match=r"from 20\.0 on .* end at 9\.75"):
        forecast(gp, [10.0, 20.0, 30.0])
    with warnings.catch_warnings(action="error"):
        forecast(gp, [20.0])
        forecast(learned(mean=Trend()), [20.0])  # the line goes on


def test_the_warning_begins_at_95_per_cent_of_the_priors_variance() -> None:
    gp = learned()
    grid = torch.linspace(9.75, 15.0, 500, dtype=DOUBLE)
    first = grid[gp.predict(grid).variance > 0.95][0]
    with pytest.warns(ExtrapolationWarning, match=rf"from {float(first)} on"):
        forecast(gp, grid)


def test_forecasts_of_points_are_at_points() -> None:
    gp = OnlineGP(RBF(2), Gaussian(0.1), PivotedCholesky(5))
    x = torch.arange(12, dtype=DOUBLE).reshape(6, 2) / 5
    gp.update(x, x.sum(-1).sin())
    np.testing.assert_array_equal(forecast(gp, x).stamps, x)
    torch.testing.assert_close(forecast(gp, x).mean, gp.predict(x).mean, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="t must be points of dim 2, got 3"):
        forecast(gp, 3)


@pytest.mark.parametrize(
    ("t", "step", "message"),
    [
        (0, None, "t must be a whole number of at least 1, got 0"),
        (-2, None, "t must be a whole number of at least 1, got -2"),
        ([-1.0, 3.0], None, r"t must not lie before t0=0\.0, got -1\.0"),
        (2, 0.0, r"step must be positive and finite, got 0\.0"),
        ([3.0], 1.0, r"step must be left out where t holds stamps, got 1\.0"),
    ],
)
def test_bad_horizons_are_refused_in_a_line(t, step, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        forecast(learned(), t, step=step)
    assert "\n" not in str(error.value)


def test_white_noise_of_the_kernel_changes_nothing_of_where_the_prior_answers() -> None:
    smooth = RBF(1, lengthscale=1.5)
    noisy = OnlineGP(smooth + White(1, outputscale=50.0), Gaussian(0.04), LegS(20))
    plain = OnlineGP(smooth, Gaussian(50.04), LegS(20))
    y = 30 * T.sin()
    found = []
    for gp in (noisy, plain):
        gp.update(T, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExtrapolationWarning)
            found.append(forecast(gp, torch.linspace(5, 30, 60, dtype=DOUBLE)).beyond)
    assert found[1].any()
    assert not found[1].all()
    torch.testing.assert_close(found[0], found[1])
