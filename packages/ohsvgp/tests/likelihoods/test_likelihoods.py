"""What every likelihood promises, against scipy's distributions and dense quadrature."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT

R, DF, SCALE = 3.7, 4.5, 0.3


def _scipy_log_prob(name: str, f: np.ndarray, y: np.ndarray) -> np.ndarray:
    match name:
        case "gaussian":
            return scipy.stats.norm(f, SCALE).logpdf(y)
        case "bernoulli":
            return np.where(y == 1, scipy.stats.norm.logcdf(f), scipy.stats.norm.logsf(f))
        case "poisson":
            return scipy.stats.poisson(np.exp(f)).logpmf(y)
        case "negative_binomial":
            return scipy.stats.nbinom(R, R / (R + np.exp(f))).logpmf(y)
        case _:
            return scipy.stats.t(DF, f, SCALE).logpdf(y)


def _double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _make(name: str) -> Likelihood:
    match name:
        case "gaussian":
            return Gaussian(_double(SCALE**2))
        case "bernoulli":
            return Bernoulli()
        case "poisson":
            return Poisson()
        case "negative_binomial":
            return NegativeBinomial(_double(R))
        case _:
            return StudentT(_double(DF), _double(SCALE))


LABELS, COUNTS, REALS = [0.0, 1.0], [0.0, 1.0, 7.0, 40.0], [-3.0, 0.1, 2.5]
TARGETS = {
    "gaussian": REALS,
    "bernoulli": LABELS,
    "poisson": COUNTS,
    "negative_binomial": COUNTS,
    "student_t": REALS,
}
NAMES = list(TARGETS)


def _grid(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """All combinations of means, variances and targets, flat."""
    return tuple(
        part.flatten()
        for part in torch.meshgrid(
            torch.tensor([-1.5, 0.0, 0.8, 2.0], dtype=torch.float64),
            torch.tensor([0.01, 0.3, 2.0], dtype=torch.float64),
            torch.tensor(TARGETS[name], dtype=torch.float64),
            indexing="ij",
        )
    )


def _dense_rule(mean: Tensor, variance: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A trapezoidal rule of 40,001 nodes over 20 standard deviations: f (k, n), weights (k, 1)."""
    x = np.linspace(-10, 10, 40_001)[:, None]
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return mean.numpy() + np.sqrt(variance.numpy()) * x, density * (x[1] - x[0])


@pytest.mark.parametrize("name", NAMES)
def test_log_prob_is_that_of_scipy(name: str) -> None:
    mean, _, y = _grid(name)
    expected = _scipy_log_prob(name, mean.numpy(), y.numpy())
    np.testing.assert_allclose(_make(name).log_prob(mean, y).detach(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_expectations_are_those_of_dense_quadrature(name: str) -> None:
    mean, variance, y = _grid(name)
    f, weight = _dense_rule(mean, variance)
    log_prob = _scipy_log_prob(name, f, y.numpy())
    residual = (f - mean.numpy()) / variance.numpy()
    # Derivatives of E[l] in the mean, by the score of the Gaussian: no derivative of l is needed.
    expected = [
        (weight * log_prob).sum(0),
        (weight * log_prob * residual).sum(0),
        (weight * log_prob * (1 / variance.numpy() - residual**2)).sum(0),
    ]
    got = _make(name).expectations(mean, variance, y)
    for value, reference in zip(got, expected, strict=True):
        # Cancellation in the reference: values over variance, times round-off of the rule.
        np.testing.assert_allclose(value.detach(), reference, rtol=1e-7, atol=3e-8)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_and_curvature_are_derivatives_of_the_expected_log_prob(name: str) -> None:
    mean, variance, y = _grid(name)
    mean.requires_grad_()
    variance.requires_grad_()
    found = _make(name).expectations(mean, variance, y)
    by_mean, by_variance = torch.autograd.grad(found.log_prob.sum(), (mean, variance))
    torch.testing.assert_close(by_mean, found.gradient, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_variance, -0.5 * found.curvature, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_predictive_log_prob_is_the_integral(name: str) -> None:
    mean, variance, y = _grid(name)
    f, weight = _dense_rule(mean, variance)
    expected = np.log((weight * np.exp(_scipy_log_prob(name, f, y.numpy()))).sum(0))
    got = _make(name).predictive_log_prob(mean, variance, y)
    # Where the target lies outside 10 standard deviations the reference misses the peak.
    seen = expected > -40
    assert seen.mean() > 0.7
    np.testing.assert_allclose(got.detach()[seen], expected[seen], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_the_predictive_moments(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    mean, variance = torch.tensor([-0.4, 1.2]).double(), torch.tensor([0.1, 0.3]).double()
    likelihood = _make(name)
    f = mean + variance.sqrt() * torch.randn(400_000, 2, generator=generator).double()
    y = likelihood.sample(f, generator).detach()
    likelihood.check_targets(y)
    law = likelihood.predictive_moments(mean, variance)
    # Four standard errors; the t distribution's variance converges slowly.
    error = 4 * (law.variance.detach() / len(y)).sqrt()
    assert ((y.mean(0) - law.mean.detach()).abs() < error).all()
    torch.testing.assert_close(y.var(0), law.variance.detach(), rtol=0.03, atol=0)


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "negative_binomial"])
def test_predictive_probabilities_sum_to_one_with_the_predictive_moments(name: str) -> None:
    likelihood, mean = _make(name), torch.tensor([0.7], dtype=torch.float64)
    support = torch.arange(2 if name == "bernoulli" else 3000, dtype=torch.float64)
    p = likelihood.predictive_log_prob(mean, torch.full_like(mean, 0.4), support).exp().detach()
    law = likelihood.predictive_moments(mean, torch.full_like(mean, 0.4))
    first, second = (p * support).sum(), (p * support.square()).sum()
    torch.testing.assert_close(p.sum().item(), 1.0, rtol=1e-9, atol=0)
    torch.testing.assert_close(law.mean.item(), first.item(), rtol=1e-8, atol=0)
    torch.testing.assert_close(law.variance.item(), (second - first**2).item(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("likelihood", "value"),
    [
        (Bernoulli(), -1.0),
        (Bernoulli(), 0.5),
        (Poisson(), -1.0),
        (Poisson(), 2.5),
        (NegativeBinomial(), -1.0),
        (NegativeBinomial(), math.inf),
    ],
)
def test_targets_outside_the_support_are_refused_by_value(
    likelihood: Likelihood, value: float
) -> None:
    with pytest.raises(ValueError, match=f"got {value}"):
        likelihood.check_targets(torch.tensor([1.0, value]))
    likelihood.check_targets(torch.tensor([1.0, 0.0]))
    likelihood.check_targets(torch.tensor([]))


def test_a_parameter_per_series_serves_each_by_itself() -> None:
    mean, variance, y = (x[:9].expand(2, 9) for x in _grid("negative_binomial"))
    for make in (NegativeBinomial, lambda value: StudentT(value, 0.5)):
        both, singles = make(torch.tensor([2.0, 9.0])).double(), [make(2.0), make(9.0)]
        for part, *parts in zip(
            both.expectations(mean, variance, y),
            *(one.double().expectations(mean[0], variance[0], y[0]) for one in singles),
            strict=True,
        ):
            torch.testing.assert_close(part, torch.stack(parts), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            both.predictive_log_prob(mean, variance, y),
            torch.stack([one.predictive_log_prob(mean[0], variance[0], y[0]) for one in singles]),
            rtol=1e-12,
            atol=1e-12,
        )
