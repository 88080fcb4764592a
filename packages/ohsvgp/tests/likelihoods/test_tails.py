"""Integrals far from the data, with narrow peaks, and where a rule on f would see nothing."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from scipy.integrate import trapezoid
from torch import Tensor

from ohsvgp.likelihoods import Bernoulli, Likelihood, NegativeBinomial, Poisson, StudentT


def _double(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _log_integral(log_integrand: np.ndarray, f: np.ndarray) -> float:
    peak = log_integrand.max()
    return peak + math.log(trapezoid(np.exp(log_integrand - peak), f))


def _log_normal(f: np.ndarray, mean: float, variance: float) -> np.ndarray:
    return scipy.stats.norm(mean, math.sqrt(variance)).logpdf(f)


@pytest.mark.parametrize(
    ("y", "mean", "variance"),
    [
        (1e6, 13.0, 1.0),  # A peak a thousand times narrower than N(f).
        (1e6, 0.0, 1.0),  # The same, 14 standard deviations off.
        (0.0, 3.0, 9.0),  # No peak of the likelihood.
        (0.0, 0.0, 100.0),
        (50.0, -3.0, 0.5),
        (3.0, 8.0, 0.01),
    ],
)
def test_predictive_log_prob_of_counts_is_exact_far_from_the_mean(
    y: float, mean: float, variance: float
) -> None:
    sd, peak = math.sqrt(variance), math.log(y + 0.5)
    f = np.linspace(min(mean, peak) - 10 * sd, min(max(mean, peak) + 10 * sd, 50), 400_001)
    cases = {
        Poisson(): scipy.stats.poisson(np.exp(f)),
        NegativeBinomial(_double(5.0)[0]): scipy.stats.nbinom(5, 5 / (5 + np.exp(f))),
    }
    for likelihood, law in cases.items():
        expected = _log_integral(law.logpmf(y) + _log_normal(f, mean, variance), f)
        got = likelihood.predictive_log_prob(_double(mean), _double(variance), _double(y))
        assert abs(got.item() - expected) < 1e-8


def test_newton_steps_to_the_peak_of_a_flat_likelihood_are_bracketed() -> None:
    """From the peak of the likelihood the first step leads far beyond that of the integrand."""
    y, mean, variance = 7569.0, -9.5, 0.55
    f = np.linspace(mean - 8, math.log(y) + 8, 400_001)
    law = scipy.stats.nbinom(1, 1 / (1 + np.exp(f)))
    expected = _log_integral(law.logpmf(y) + _log_normal(f, mean, variance), f)
    likelihood = NegativeBinomial(_double(1.0)[0])
    got = likelihood.predictive_log_prob(_double(mean), _double(variance), _double(y))
    assert abs(got.item() - expected) < 1e-8


@pytest.mark.parametrize("df", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(
    ("y", "variance"), [(0.0, 1.0), (5.0, 1.0), (30.0, 1.0), (1e6, 1.0), (3.0, 100.0), (0.3, 1e-6)]
)
def test_student_t_is_exact_whatever_the_width_of_f_and_the_distance(
    df: float, y: float, variance: float
) -> None:
    scale = 0.1
    # Fine around both peaks: the noise's at y and that of N(0, variance).
    around_y = y + scale * np.sinh(np.linspace(-20, 20, 100_001))
    f = np.unique(np.concatenate([around_y, math.sqrt(variance) * np.linspace(-12, 12, 100_001)]))
    prior, c = _log_normal(f, 0.0, variance), df * scale**2
    log_prob = scipy.stats.t.logpdf(y, df, f, scale)
    likelihood = StudentT(_double(df)[0], _double(scale)[0])
    arguments = _double(0.0), _double(variance), _double(y)
    got = likelihood.predictive_log_prob(*arguments).item()
    # Two narrow peaks far from each other, with many degrees of freedom, cost digits.
    assert abs(got - _log_integral(prior + log_prob, f)) < (1e-7 if df < 10 else 1e-5)
    weight, square = np.exp(prior), (y - f) ** 2
    expected = [
        trapezoid(weight * log_prob, f),
        trapezoid(weight * (df + 1) * (y - f) / (c + square), f),
        trapezoid(weight * (df + 1) * (c - square) / (c + square) ** 2, f),
    ]
    for value, reference in zip(likelihood.expectations(*arguments), expected, strict=True):
        np.testing.assert_allclose(value.item(), reference, rtol=1e-5, atol=1e-12)


def test_bernoulli_tails_keep_their_digits() -> None:
    mean, variance = _double(-60.0), _double(3.0)
    expected = scipy.special.log_ndtr(-30.0)
    got = Bernoulli().predictive_log_prob(mean, variance, _double(1.0))
    assert got.item() == pytest.approx(expected, rel=1e-12)
    law = Bernoulli().predictive_moments(-mean, variance)
    assert law.variance.item() == pytest.approx(math.exp(expected), rel=1e-10)
    # The slope of log Φ is −z + O(1/z) far out, its curvature one.
    found = Bernoulli().expectations(_double(-1e5), _double(1e-4), _double(1.0))
    assert found.gradient.item() == pytest.approx(1e5, rel=1e-9)
    assert found.curvature.item() == pytest.approx(1.0, abs=1e-4)


def test_bernoulli_curvature_stays_in_its_bounds_where_no_digit_of_it_is_left() -> None:
    far = torch.logspace(2, 12, 2001, dtype=torch.float64)
    curvature = -Bernoulli().derivatives(-far, torch.ones_like(far)).second
    assert float(curvature.min()) >= 0
    assert float(curvature.max()) <= 1


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(), StudentT(), Bernoulli()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_stay_finite_in_either_precision(
    likelihood: Likelihood, dtype: torch.dtype
) -> None:
    mean = torch.tensor([-1e4, -80.0, 0.0, 80.0, 1e4], dtype=dtype)[:, None, None]
    variance = torch.tensor([0.0, 1e-12, 1.0, 50.0], dtype=dtype)[:, None]
    targets = [0.0, 1.0] if isinstance(likelihood, Bernoulli) else [0.0, 1.0, 1e6]
    y = torch.tensor(targets, dtype=dtype)
    found = likelihood.to(dtype).expectations(mean, variance, y)
    for part in (*found, likelihood.predictive_log_prob(mean, variance, y)):
        assert part.dtype == dtype
        assert part.isfinite().all()
    assert (found.log_prob <= 0).all() or isinstance(likelihood, StudentT)
    if isinstance(likelihood, Poisson | NegativeBinomial):
        moments = likelihood.predictive_moments(mean, variance)
        assert not moments.mean.isnan().any()
        assert likelihood.sample(mean.expand(5, 4, 1)).isfinite().all()


def test_gradients_reach_mean_variance_and_parameters_of_every_prediction() -> None:
    for likelihood, y in ((NegativeBinomial(), 4.0), (StudentT(), 0.4), (Poisson(), 2.0)):
        likelihood.double()
        inputs = [_double(0.3).requires_grad_(), _double(0.5).requires_grad_()]
        leaves = [*inputs, *likelihood.parameters()]

        def log_prob(*values: Tensor, model: Likelihood = likelihood, y: float = y) -> Tensor:
            parameters = dict(zip(dict(model.named_parameters()), values[2:], strict=True))
            call = _Call(model)
            named = {f"model.{name}": value for name, value in parameters.items()}
            return torch.func.functional_call(call, named, (values[0], values[1], _double(y)))

        assert torch.autograd.gradcheck(log_prob, leaves, atol=1e-7)


class _Call(torch.nn.Module):
    def __init__(self, model: Likelihood) -> None:
        super().__init__()
        self.model = model

    def forward(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        predictive = self.model.predictive_log_prob(mean, variance, y)
        return predictive + self.model.expectations(mean, variance, y).log_prob
