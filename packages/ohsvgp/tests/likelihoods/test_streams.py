"""Online Gaussian processes on labels and counts."""

import numpy as np
import pytest

from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.points import PivotedCholesky
from ohsvgp.likelihoods import Bernoulli, NegativeBinomial
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
