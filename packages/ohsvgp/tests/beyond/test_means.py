"""Means beside the process: against dense Gaussian processes with their kernel, and regression."""

import copy

import pytest
import torch
from torch.testing import assert_close

from ohsvgp import (
    Cosine,
    Gaussian,
    LegS,
    LegT,
    Level,
    OnlineGP,
    Path,
    PivotedCholesky,
    Poisson,
    RandomSubset,
    RecurrentFeatures,
    Regressors,
    Seasonal,
    Trend,
    UniformGrid,
    VariationalFourier,
)
from ohsvgp.bases import AdamSteps
from ohsvgp.beyond.means import MeanKernel
from ohsvgp.exact import log_marginal_likelihood
from probseq.kernels import RBF, Matern32, Periodic

NOISE = 0.04


def data(n=60, end=12.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    t = (end * torch.rand(n, generator=generator, dtype=torch.float64)).sort().values
    t = torch.cat([t.new_zeros(1), t[1:]])
    season = (2 * torch.pi * t / 3).cos()
    wiggles = 0.3 * (2.1 * t).sin()
    noise = 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return t, 5 + 0.7 * t + season + wiggles + noise


def mean():
    return Trend(level=8.0, slope=2.0) + Seasonal(3.0, 2, deviation=1.5)


def rbf():
    return RBF(1, lengthscale=1.0, outputscale=0.5).double()


def dense(x):
    """K of process and mean, built from the features' formulas alone."""
    k = torch.arange(1, 3)
    phase = 2 * torch.pi * x * k / 3
    phi = torch.cat([8 + 0 * x, 2 * x, 1.5 * phase.cos(), 1.5 * phase.sin()], -1)
    return phi @ phi.mT


@pytest.mark.parametrize(
    "basis",
    [
        LegS(40),
        Cosine(50),
        UniformGrid(60),
        PivotedCholesky(60),
        RandomSubset(60),
        LegS(40, num_nodes=60),
    ],
)
def test_a_stream_gives_the_posterior_of_the_dense_process_with_that_kernel(basis):
    t, y = data()
    gp = OnlineGP(rbf(), Gaussian(NOISE), basis, mean=mean())
    for part in torch.arange(60).chunk(6):
        gp.update(t[part], y[part])
    x = torch.linspace(0, 15, 41, dtype=torch.float64)
    kernel, inputs, z = MeanKernel(rbf(), mean()), t[:, None], x[:, None]
    with torch.no_grad():
        K = kernel(inputs, inputs) + NOISE * torch.eye(len(t)).double()
        gain = torch.linalg.solve(K, kernel(inputs, z)).mT
        covariance = kernel(z, z) - gain @ kernel(inputs, z)
    found = gp.predict(x, full_cov=True)
    assert_close(found.mean, gain @ y, rtol=0, atol=2e-4)
    assert_close(found.covariance, covariance, rtol=0, atol=2e-3)


def test_weights_are_those_of_bayesian_regression_however_small_m_and_however_often_it_moves():
    t, y = data(n=400, end=300.0)
    # Of the process nothing is left but a variance of 1e-9.
    kernel = RBF(1, lengthscale=5.0, outputscale=1e-9).double()
    gp = OnlineGP(kernel, Gaussian(NOISE), LegS(3), mean=mean())
    for part in torch.arange(400).chunk(40):
        gp.update(t[part], y[part])
    phi = mean().scaled(t[:, None])
    precision = phi.mT @ phi / NOISE + torch.eye(6)
    x = torch.linspace(0, 500, 101, dtype=torch.float64)
    new = mean().scaled(x[:, None])
    expected = new @ torch.linalg.solve(precision, phi.mT @ y / NOISE)
    variance = (new * torch.linalg.solve(precision, new.mT).mT).sum(-1)
    found = gp.predict(x)
    assert_close(found.mean, expected, rtol=1e-6, atol=1e-6)
    assert_close(found.variance, variance, rtol=1e-4, atol=1e-7)


def test_the_evidence_that_fits_hyperparameters_is_that_of_the_sum():
    t, y = data()
    gp = OnlineGP(rbf(), Gaussian(NOISE), LegS(20), mean=mean())
    before, noise = copy.deepcopy(gp.kernel), gp.likelihood.noise.item()
    fit = gp.fit_hyperparameters(t, y, steps=20)
    dense_evidence = log_marginal_likelihood(MeanKernel(before, mean()), noise, t[:, None], y)
    assert fit.before == pytest.approx(float(dense_evidence.detach()), rel=1e-9)
    assert fit.after > fit.before
    gp.update(t, y)
    again = gp.fit_hyperparameters(t[-10:], y[-10:], steps=3)
    assert again.after >= again.before


def test_energies_of_a_staying_set_add_up_to_no_more_than_the_evidence():
    t, y = data()
    options = {"rebase": "manual", "t0": 0.0, "alpha": 0.0}
    gp = OnlineGP(rbf(), Gaussian(NOISE), UniformGrid(60), mean=mean(), **options)
    gp.rebase(12.0)
    total = sum(float(gp.update(t[p], y[p]).energy) for p in torch.arange(60).chunk(6))
    kernel = MeanKernel(rbf(), mean())
    evidence = float(log_marginal_likelihood(kernel, NOISE, t[:, None], y).detach())
    assert evidence - 0.05 < total <= evidence + 1e-6


@pytest.mark.parametrize(
    ("kernel", "basis"),
    [
        (Matern32(1), VariationalFourier(21, -2.0, 25.0)),
        (RBF(1), RecurrentFeatures(LegS(15), num_features=50)),
        (RBF(1), PivotedCholesky(15, learn=AdamSteps(steps=3))),
        (RBF(1), LegT(15, 4.0)),
        (Periodic(1) * RBF(1), LegS(15)),
    ],
)
def test_every_basis_takes_a_mean_and_its_state_comes_back_bit_equal(kernel, basis):
    t, y = data()
    gp = OnlineGP(kernel, Gaussian(NOISE), basis, mean=mean())
    for part in torch.arange(60).chunk(3):
        gp.update(t[part], y[part])
    x = torch.linspace(0, 15, 31)
    residual = y - gp.predict(t).mean
    assert residual.abs().mean() < 0.6  # half of what the season alone leaves
    again = OnlineGP(copy.deepcopy(gp.kernel), Gaussian(NOISE), basis, mean=mean())
    again.load_state_dict(gp.state_dict())
    assert torch.equal(again.predict(x).mean, gp.predict(x).mean)
    other = OnlineGP(copy.deepcopy(gp.kernel), Gaussian(NOISE), basis, mean=Trend())
    with pytest.raises(ValueError, match="basis"):
        other.load_state_dict(gp.state_dict())


def test_points_take_a_level_and_regressors_and_no_trend():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    y = 4 + x[:, 0] - 2 * x[:, 1].square()
    squares = Regressors(lambda x: x.square(), 2, deviation=5.0)
    gp = OnlineGP(
        RBF(2, lengthscale=3.0), Gaussian(1e-3), Path(20, memory="inputs"), mean=Level() + squares
    )
    for part in torch.arange(80).chunk(4):
        gp.update(x[part], y[part])
    assert (gp.predict(x).mean - y).abs().max() < 0.2
    with pytest.raises(ValueError, match="mean must be Level or Regressors for points of dim 2"):
        OnlineGP(RBF(2), Gaussian(0.1), Path(20), mean=Level() + Trend())


def test_regressors_of_another_shape_are_refused_and_the_model_stays():
    t, y = data()
    gp = OnlineGP(rbf(), Gaussian(NOISE), LegS(10), mean=Regressors(lambda x: x, 2))
    with pytest.raises(ValueError, match=r"function must give finite features of shape \(60, 2\)"):
        gp.update(t, y)
    assert gp.state is None


def test_counts_take_a_mean():
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(120.0)
    rate = (1 + 0.01 * t + 0.5 * (2 * torch.pi * t / 7).sin()).exp()
    y = torch.poisson(rate, generator=generator)
    kernel = RBF(1, lengthscale=30.0, outputscale=0.05)
    gp = OnlineGP(kernel, Poisson(), LegS(8), mean=Trend(2.0, 0.1) + Seasonal(7.0, 2))
    for part in torch.arange(120).chunk(6):
        gp.update(t[part], y[part])
    ahead = torch.arange(120.0, 134.0)
    truth = 1 + 0.01 * ahead + 0.5 * (2 * torch.pi * ahead / 7).sin()
    found = gp.predict(ahead)
    assert (found.mean - truth).abs().max() < 0.35
    assert ((found.mean - truth).abs() < 3 * found.variance.sqrt()).all()


def test_series_share_their_features_and_have_weights_of_their_own():
    t, y = data()
    gp = OnlineGP(rbf(), Gaussian(NOISE), LegS(30), mean=mean())
    both = torch.stack([y, -2 * y + 1])
    for part in torch.arange(60).chunk(3):
        gp.update(t[part], both[:, part])
    alone = OnlineGP(rbf(), Gaussian(NOISE), LegS(30), mean=mean())
    for part in torch.arange(60).chunk(3):
        alone.update(t[part], both[1, part])
    assert_close(gp.predict(t).mean[1], alone.predict(t).mean, rtol=1e-8, atol=1e-8)


def test_projections_are_of_the_process_and_the_picture_has_the_mean_in_it():
    t, y = data()
    gp = OnlineGP(rbf(), Gaussian(NOISE), LegS(30), mean=mean())
    gp.update(t, y)
    assert gp.posterior_coefficients().mean.shape == (30,)
    inside = torch.linspace(1, 11, 21)
    assert_close(gp.reconstruct(inside).mean, gp.predict(inside).mean, rtol=0, atol=0.05)
