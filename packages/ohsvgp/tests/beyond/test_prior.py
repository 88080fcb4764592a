import pytest
import torch

from ohsvgp.beyond.prior import fit_prior, make_prior
from ohsvgp.likelihoods import NegativeBinomial, StudentT


def test_names_and_numbers_make_a_prior_that_keeps_its_digits():
    kernel, likelihood = make_prior(
        kernel="matern32", likelihood="student-t", lengthscale=0.1, noise=0.01, dim=2
    )
    assert kernel.lengthscale.flatten().tolist() == pytest.approx([0.1, 0.1], abs=1e-15)
    assert isinstance(likelihood, StudentT)
    assert likelihood.scale.item() == pytest.approx(0.1, abs=1e-15)
    assert isinstance(make_prior(likelihood="negative-binomial")[1], NegativeBinomial)


def test_a_fitted_prior_has_the_greatest_evidence():
    x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.sin(2 * x) + 0.1 * noise

    kernel, likelihood = fit_prior(
        [make_prior(lengthscale=scale, noise=0.5) for scale in (200.0, 1.0)], x, y, steps=100
    )

    def evidence(lengthscale, variance, noise):
        K = variance * torch.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)
        K = K + noise * torch.eye(len(x), dtype=torch.float64)
        law = torch.distributions.MultivariateNormal(torch.zeros_like(y), K)
        return float(law.log_prob(y))

    best = [kernel.lengthscale.item(), kernel.outputscale.item(), likelihood.noise.item()]
    assert evidence(*best) > evidence(1.0, 1.0, 0.5)
    for place in range(3):
        for factor in (0.8, 1.25):
            other = list(best)
            other[place] *= factor
            assert evidence(*other) <= evidence(*best) + 1e-6
