"""Continuous ranked probability scores of predictive mixtures, against numeric integration."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from scipy.integrate import quad

from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT

DOUBLE = torch.float64


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


CONTINUOUS = {
    "gaussian": (Gaussian(double(0.3)[0]), lambda f: scipy.stats.norm(f, math.sqrt(0.3))),
    "light": (StudentT(double(40.0)[0], double(0.4)[0]), lambda f: scipy.stats.t(40.0, f, 0.4)),
    "student": (StudentT(double(4.0)[0], double(0.4)[0]), lambda f: scipy.stats.t(4.0, f, 0.4)),
    "heavy": (StudentT(double(1.3)[0], double(0.4)[0]), lambda f: scipy.stats.t(1.3, f, 0.4)),
}
COUNTS = {
    "poisson": (Poisson(), lambda f: scipy.stats.poisson(np.exp(f))),
    "binomial": (
        NegativeBinomial(double(2.5)[0]),
        lambda f: scipy.stats.nbinom(2.5, 2.5 / (2.5 + np.exp(f))),
    ),
    "wild": (
        NegativeBinomial(double(0.05)[0]),
        lambda f: scipy.stats.nbinom(0.05, 0.05 / (0.05 + np.exp(f))),
    ),
    "bernoulli": (Bernoulli(), lambda f: scipy.stats.bernoulli(scipy.stats.norm.cdf(f))),
}


def mixture(law, mean: float, variance: float, nodes: int = 501):
    """P(Y ≤ y) by a midpoint rule over nine standard deviations of f."""
    z, step = np.linspace(-9, 9, nodes, retstep=True)
    weight, conditional = step * scipy.stats.norm.pdf(z), law(mean + math.sqrt(variance) * z)
    return lambda y: (weight * conditional.cdf(np.asarray(y)[..., None])).sum(-1)


def found(likelihood: Likelihood, mean: float, variance: float, y: list[float]) -> np.ndarray:
    return likelihood.predictive_crps(double(mean), double(variance), double(*y)).numpy()


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1e-9), (0.3, 0.04), (-2.0, 1.0), (5.0, 9.0)])
def test_the_score_of_a_density_is_the_integral_of_the_squared_distance(
    name: str, mean: float, variance: float
) -> None:
    likelihood, law = CONTINUOUS[name]
    cdf = mixture(law, mean, variance)
    wanted = []
    for y in (mean, mean + 0.4, mean - 3.0, mean + 40.0):
        edges = [-np.inf, *sorted({mean - 5, mean - 0.5, mean, mean + 0.5, mean + 5, y}), np.inf]
        wanted.append(
            sum(
                quad(lambda x, y=y: float(cdf(x) - (y <= x)) ** 2, *ends, epsabs=1e-11, limit=200)[
                    0
                ]
                for ends in pairwise(edges)
            )
        )
    scores = found(likelihood, mean, variance, [mean, mean + 0.4, mean - 3.0, mean + 40.0])
    np.testing.assert_allclose(scores, wanted, rtol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1e-9), (-2.0, 1.0), (3.0, 0.01)])
def test_the_score_of_counts_is_the_sum_of_the_squared_distance(
    name: str, mean: float, variance: float
) -> None:
    likelihood, law = COUNTS[name]
    y = [0.0, 1.0] if name == "bernoulli" else [0.0, 1.0, 9.0, 300.0]
    k = np.arange(6000.0 if name == "wild" else 1500.0)
    cdf = mixture(law, mean, variance, nodes=151)(k)
    wanted = [np.square(cdf - (own <= k)).sum() for own in y]
    np.testing.assert_allclose(found(likelihood, mean, variance, y), wanted, rtol=1e-7)


def test_large_counts_are_scored_by_an_integral() -> None:
    # A Poisson of 3,000 with its rate known to a hundredth; far below it nothing is left.
    mean, variance, k = math.log(3000), 1e-4, np.arange(4000.0)
    cdf = np.zeros(4000)
    cdf[2400:] = mixture(COUNTS["poisson"][1], mean, variance)(k[2400:])
    y = [3000.0, 3050.0, 2500.0, 128.0, 127.0, 0.0]
    wanted = [np.square(cdf - (own <= k)).sum() for own in y]
    np.testing.assert_allclose(found(Poisson(), mean, variance, y), wanted, rtol=1e-6)


@pytest.mark.parametrize(("mean", "variance"), [(3.0, 4.0), (0.0, 9.0)])
def test_counts_of_a_wide_rate_are_scored_to_the_end_of_their_tail(mean, variance) -> None:
    likelihood, law = COUNTS["binomial"]
    cdf = mixture(law, mean, variance)
    first, rest = cdf(np.arange(1000.0)), np.exp(np.linspace(math.log(1e3), 24.0, 4001))
    # scipy's distribution functions are steps: the integral from 1000 on is the sum.
    tail = scipy.integrate.simpson(np.square(1 - cdf(rest)) * rest, x=np.log(rest))
    y = [0.0, 7.0, 300.0]
    wanted = [np.square(first - (own <= np.arange(1000.0))).sum() + tail for own in y]
    np.testing.assert_allclose(found(likelihood, mean, variance, y), wanted, rtol=2e-5)


@pytest.mark.parametrize("name", [*CONTINUOUS, *COUNTS])
def test_the_score_is_that_of_many_draws_and_each_series_has_its_own(name: str) -> None:
    likelihood: Likelihood = (CONTINUOUS | COUNTS)[name][0]
    mean, variance, generator = double(0.2, 1.0), double(0.3, 0.1), torch.Generator().manual_seed(0)
    f = mean + variance.sqrt() * torch.randn(200_000, 2, dtype=DOUBLE, generator=generator)
    with torch.no_grad():
        draws = likelihood.sample(f, generator)
    y, half = double(1.0, 0.0), 100_000
    drawn = (draws - y).abs().mean(0) - 0.5 * (draws[:half] - draws[half:]).abs().mean(0)
    scores = likelihood.predictive_crps(mean, variance, y)
    tolerance = 0.2 if name == "heavy" else 0.02  # draws without a variance scatter
    torch.testing.assert_close(scores, drawn, rtol=tolerance, atol=0.005)
    rows = likelihood.predictive_crps(mean.expand(3, 2), variance, y)
    torch.testing.assert_close(rows, scores.expand(3, 2))


def test_a_law_without_a_mean_has_an_infinite_score() -> None:
    assert found(StudentT(double(1.0)[0], double(0.4)[0]), 0.0, 1.0, [0.0]) == [math.inf]
