"""Quantiles and distribution functions of predictive mixtures, against scipy and dense sums."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from ohsvgp.likelihoods.quantiles import stirling

DOUBLE = torch.float64


def double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=DOUBLE)


LIKELIHOODS = {
    "gaussian": (Gaussian(double(0.3)), lambda f: scipy.stats.norm(f, math.sqrt(0.3))),
    "student": (StudentT(double(3.0), double(0.4)), lambda f: scipy.stats.t(3.0, f, 0.4)),
    "cauchy": (StudentT(double(1.0), double(0.4)), lambda f: scipy.stats.t(1.0, f, 0.4)),
    "poisson": (Poisson(), lambda f: scipy.stats.poisson(np.exp(f))),
    "binomial": (
        NegativeBinomial(double(2.5)),
        lambda f: scipy.stats.nbinom(2.5, 2.5 / (2.5 + np.exp(f))),
    ),
    "wild": (
        NegativeBinomial(double(0.05)),
        lambda f: scipy.stats.nbinom(0.05, 0.05 / (0.05 + np.exp(f))),
    ),
    "bernoulli": (Bernoulli(), lambda f: scipy.stats.bernoulli(scipy.stats.norm.cdf(f))),
}
COUNTS = ("poisson", "binomial", "wild")
LAWS = [(0.3, 1e-12), (0.3, 0.04), (-2.0, 1.0), (2.0, 2.25), (5.0, 0.01), (14.0, 1e-6), (9.0, 0.5)]
LEVELS = [1e-6, 0.025, 0.25, 0.5, 0.9, 0.975, 1 - 1e-6]


def mixture(name: str, mean: float, variance: float, y: np.ndarray) -> np.ndarray:
    """P(Y ≤ y) by a midpoint rule of 4,001 nodes over ten standard deviations of f."""
    z, step = np.linspace(-10, 10, 4_001, retstep=True)
    weight = step * scipy.stats.norm.pdf(z)
    law = LIKELIHOODS[name][1](mean + math.sqrt(variance) * z)
    return np.array([(weight * law.cdf(one)).sum() for one in y])


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(("mean", "variance"), LAWS)
def test_the_distribution_function_is_that_of_the_mixture(
    name: str, mean: float, variance: float
) -> None:
    likelihood = LIKELIHOODS[name][0]
    m, v = double(mean).expand(7), double(variance).expand(7)
    y = likelihood.quantile(m, v, torch.tensor(LEVELS, dtype=DOUBLE))
    expected = mixture(name, mean, variance, y.numpy())
    np.testing.assert_allclose(likelihood.predictive_cdf(m, v, y).detach(), expected, atol=2e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(("mean", "variance"), LAWS)
def test_a_quantile_is_the_least_value_of_at_least_that_probability(
    name: str, mean: float, variance: float
) -> None:
    likelihood = LIKELIHOODS[name][0]
    m, v = double(mean).expand(7), double(variance).expand(7)
    y = likelihood.quantile(m, v, torch.tensor(LEVELS, dtype=DOUBLE)).numpy()
    reached = mixture(name, mean, variance, y)
    if name in (*COUNTS, "bernoulli"):
        assert (y == np.round(y)).all()
        assert (reached >= np.array(LEVELS) - 2e-10).all()
        assert (mixture(name, mean, variance, y - 1) < np.array(LEVELS) + 2e-10).all()
    else:
        np.testing.assert_allclose(reached, LEVELS, atol=2e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_draws_fall_below_the_quantiles_as_often_as_they_say(name: str) -> None:
    likelihood: Likelihood = LIKELIHOODS[name][0]
    generator = torch.Generator().manual_seed(3)
    f = 1.0 + 0.8 * torch.randn(40_000, dtype=DOUBLE, generator=generator)
    y = likelihood.sample(f, generator).detach()
    for level in (0.1, 0.5, 0.9):
        edge = likelihood.quantile(double(1.0).expand(1), double(0.64).expand(1), level)
        error = 4 * math.sqrt(level * (1 - level) / 40_000)  # four standard errors
        assert (y <= edge).double().mean() > level - error
        assert (y < edge).double().mean() < level + error


@pytest.mark.parametrize("name", ["gaussian", "student", "cauchy", *COUNTS])
def test_without_variance_the_quantiles_are_those_of_the_noise(name: str) -> None:
    likelihood, law = LIKELIHOODS[name]
    f = torch.tensor([-1.0, 0.7, 6.0, 20.7], dtype=DOUBLE)  # counts up to a thousand million
    for level in (0.01, 0.4, 0.999):
        found = likelihood.quantile(f, torch.zeros_like(f), level).numpy()
        expected = law(f.numpy()).ppf(level)
        # Float64 resolves a thousand million's distribution function to some 1e-11 of its width.
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("m", "v"), [(3.0, 100.0), (0.0, 400.0), (-30.0, 9.0)])
def test_counts_of_a_vast_variance_follow_the_log_normal_law(m: float, v: float) -> None:
    # P(Poisson(e^f) ≤ y) is a step at f = log y to within 1/√y: nothing beside such a variance.
    mean, variance = double(m).expand(1), double(v).expand(1)
    for level in (0.95, 0.999):
        expected = math.exp(m + math.sqrt(v) * scipy.stats.norm.ppf(level))
        found = float(Poisson().quantile(mean, variance, level))
        if expected > 1e6:
            assert found == pytest.approx(expected, rel=1e-5)
        elif expected < 0.01:
            assert found == 0.0


def test_stirlings_series_meets_the_gamma_function() -> None:
    a = torch.tensor([0.03, 1.0, 19.9, 20.0, 50.0, 300.0], dtype=DOUBLE)
    expected = [math.log(x) * x - x - math.lgamma(x) for x in a.tolist()]
    # What cancels is of size x log x.
    np.testing.assert_allclose(stirling(a), expected, atol=5e-13)
