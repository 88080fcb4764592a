"""Online Gaussian processes on labels and counts."""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.legendre import LegS
from ohsvgp.bases.points import PivotedCholesky
from ohsvgp.likelihoods import Bernoulli, NegativeBinomial, StudentT
from ohsvgp.online import OnlineGP
from probseq.kernels import RBF


def test_two_moons_in_three_tasks_are_separated_without_forgetting() -> None:
    rng = np.random.default_rng(0)
    angle = np.linspace(0, np.pi, 60)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    x = np.concatenate([upper, [1.0, 0.5] - upper]) + 0.1 * rng.standard_normal((120, 2))
    y = np.repeat([0.0, 1.0], 60)
    gp = OnlineGP(RBF(2, lengthscale=0.5, outputscale=4.0), Bernoulli(), PivotedCholesky(20))
    for task in np.array_split(np.argsort(x[:, 0]), 3):
        gp.update(x[task], y[task])
        label = gp.predict(x[task], include_noise=True).mean.numpy() > 0.5
        np.testing.assert_array_equal(label, y[task] == 1)
    p = gp.predict(x, include_noise=True).mean.numpy()
    np.testing.assert_array_equal(p > 0.5, y == 1)
    # Far from all data there is no evidence for either label.
    assert abs(gp.predict([[30.0, 30.0]], include_noise=True).mean.item() - 0.5) < 1e-6


@pytest.fixture(scope="module")
def deaths(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    """COVID-19 deaths a day in Santa Catarina, the first year; time in months."""
    file = shared_data / "covid_deaths_brazil" / "santa_catarina.csv"
    table = np.genfromtxt(file, delimiter=",", names=True, dtype=None, encoding="utf-8")
    # One day holds a correction of the days before, −1.
    return np.arange(366) / 30, table["new_deaths"][:366].clip(0).astype(float)


@pytest.mark.parametrize("num_inducing", [15, 30])
def test_covid_deaths_in_five_tasks_have_calibrated_forecasts(
    deaths: tuple[np.ndarray, np.ndarray], num_inducing: int
) -> None:
    t, y = deaths
    test = np.zeros(len(t), dtype=bool)
    test[np.random.default_rng(0).choice(len(t), 73, replace=False)] = True
    kernel = RBF(1, lengthscale=1.5, outputscale=4.0)
    gp = OnlineGP(kernel, NegativeBinomial(5.0), LegS(num_inducing))
    for task in np.array_split(np.flatnonzero(~test), 5):
        info = gp.update(t[task], y[task])
        assert info.energy.isfinite()
    nlpd = -gp.log_prob(t[test], y[test])
    assert nlpd.isfinite().all()
    # Against a negative binomial of the training targets' mean and variance.
    mean, variance = y[~test].mean(), y[~test].var()
    static = scipy.stats.nbinom(mean**2 / (variance - mean), mean / variance)
    assert nlpd.mean() < -static.logpmf(y[test]).mean() - 0.7
    f = gp.predict(t[test])
    generator = torch.Generator().manual_seed(1)
    draws = f.rsample((4000,), generator=generator)
    counts = gp.likelihood.sample(draws, generator).detach().numpy()
    low, high = np.quantile(counts, [0.05, 0.95], axis=0)
    covered = ((y[test] >= low) & (y[test] <= high)).mean()
    # Nine tenths, three standard errors, and a little more because counts are discrete.
    assert 0.8 <= covered <= 1.0
    expected = gp.predict(t[test], include_noise=True)
    np.testing.assert_allclose(expected.mean, counts.mean(0), rtol=0.1, atol=0.1)


def test_dispersion_is_fitted_by_the_bound_unless_it_is_fixed() -> None:
    rng = np.random.default_rng(3)
    t = np.linspace(0, 10, 250)
    y = rng.negative_binomial(2, 2 / (2 + np.exp(1.5 + np.sin(t)))).astype(float)
    free = OnlineGP(RBF(1), NegativeBinomial(20.0), UniformGrid(12))
    free.fit_hyperparameters(t, y, steps=10)
    assert 1.5 < free.likelihood.dispersion.item() < 2.7
    fixed = OnlineGP(RBF(1), NegativeBinomial(20.0).requires_grad_(False), UniformGrid(12))
    fixed.fit_hyperparameters(t, y, steps=3)
    assert fixed.likelihood.dispersion.item() == pytest.approx(20.0)
    assert free.energy(t, y) > fixed.energy(t, y) + 10


def test_an_outlier_hardly_moves_a_robust_model() -> None:
    t = np.linspace(0, 6, 60)
    y = np.sin(t) + 0.1 * np.random.default_rng(1).standard_normal(60)
    spoiled = y.copy()
    spoiled[30] += 20
    means = []
    for targets in (y, spoiled):
        gp = OnlineGP(RBF(1), StudentT(4.0, 0.1), LegS(15))
        for task in np.array_split(np.arange(60), 3):
            gp.update(t[task], targets[task])
        means.append(gp.predict(t).mean)
    assert (means[0] - means[1]).abs().max() < 0.05
    assert (means[1] - torch.from_numpy(np.sin(t))).abs().max() < 0.15
