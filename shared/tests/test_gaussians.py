"""Gaussian algebra against torch.distributions, dense conditioning and Monte Carlo."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from probseq.gaussians import DiagonalGaussian, JointGaussian, gauss_kl


def randn(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_q(*batch, m, seed=0):
    return randn(*batch, m, seed=seed), randn(*batch, m, m, seed=seed + 1)


def covariance_of(factor):
    lower = factor.tril()
    return lower @ lower.mT


def prior_factor(*batch, m, seed=5):
    return torch.linalg.cholesky(covariance_of(randn(*batch, m, m, seed=seed)) + torch.eye(m))


@pytest.mark.parametrize("with_prior", [False, True])
def test_gauss_kl_equals_torch_distributions_for_every_batch_member(with_prior):
    q_mu, q_sqrt = random_q(3, 2, m=4)
    L = prior_factor(3, 2, m=4) if with_prior else None
    prior_covariance = L @ L.mT if with_prior else torch.eye(4, dtype=torch.float64)
    q = MultivariateNormal(q_mu, covariance_of(q_sqrt))
    p = MultivariateNormal(torch.zeros(4, dtype=torch.float64), prior_covariance)
    torch.testing.assert_close(gauss_kl(q_mu, q_sqrt, L), kl_divergence(q, p))


def test_gauss_kl_is_zero_at_the_prior_and_independent_of_the_diagonals_sign():
    L = prior_factor(m=5)
    zero = torch.zeros(5, dtype=torch.float64)
    # 20 terms of order one cancel.
    assert gauss_kl(zero, L, L).abs() < 1e-13
    flipped = L * torch.tensor([1.0, -1, 1, -1, 1], dtype=torch.float64)
    assert gauss_kl(zero, flipped, L).abs() < 1e-13


def test_gauss_kl_shares_factors_and_priors_of_batch_size_one():
    q_mu, q_sqrt = randn(3, 4, seed=0), randn(1, 4, 4, seed=1)
    L = prior_factor(1, m=4)
    expected = gauss_kl(q_mu, q_sqrt.expand(3, 4, 4), L.expand(3, 4, 4))
    torch.testing.assert_close(gauss_kl(q_mu, q_sqrt, L), expected)


def test_gauss_kl_gradients_agree_with_finite_differences():
    q_mu, q_sqrt = random_q(2, m=3)
    L = prior_factor(2, m=3)
    inputs = (q_mu.requires_grad_(), q_sqrt.requires_grad_(), L.requires_grad_())
    torch.autograd.gradcheck(lambda m, s, f: gauss_kl(m, s, f.tril()), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gauss_kl_near_the_prior_is_right_and_never_negative(dtype):
    # Every number next to one, and others on the way to both ends.
    eps = torch.finfo(dtype).eps
    near = 1 + eps * torch.arange(-20_000, 20_001, dtype=torch.float64)
    far = torch.logspace(-30, 18, 4001, dtype=torch.float64)
    deviations = torch.cat([near, far]).to(dtype)[:, None]
    found = gauss_kl(torch.zeros_like(deviations), deviations[..., None])[:, None]
    assert (found >= 0).all()
    # (w² − 1 − log w²)/2 in twice the precision: by its series at one, and as it stands elsewhere.
    w = deviations.double()
    t = w - 1
    series = t.square() * (1 - t * (1 / 3 - t * (1 / 4 - t / 5)))
    expected = torch.where(t.abs() < 1e-2, series, 0.5 * (w.square() - 1) - w.log())
    error = (found.double() - expected).abs()
    assert (error <= 4 * eps * (t.abs() + expected) + 1e-11 * t.abs()).all()


def test_gauss_kl_of_factors_near_the_prior_s_is_never_negative_in_float32():
    generator = torch.Generator().manual_seed(0)
    L = prior_factor(200, m=12)
    change = 1e-4 * torch.randn(200, 12, 12, generator=generator, dtype=torch.float64)
    q_sqrt = L @ (torch.eye(12) + change.tril())
    zero = torch.zeros(200, 12, dtype=torch.float64)
    expected = gauss_kl(zero, q_sqrt, L)
    found = gauss_kl(zero.float(), q_sqrt.float(), L.float())
    assert (found >= 0).all()
    # The float32 factors are other factors: 1e-7 in W, whose entries off the identity are 1e-4.
    torch.testing.assert_close(found.double(), expected, rtol=0.1, atol=1e-9)


def test_gauss_kl_is_infinite_for_a_singular_factor():
    assert gauss_kl(torch.zeros(2), torch.tensor([1.0, 0.0]).diag()).item() == math.inf


@pytest.mark.parametrize("bad", [-1.0, -(2.0**-99), math.nan])
def test_a_diagonal_gaussian_refuses_negative_variances(bad):
    with pytest.raises(ValueError, match=f"variance must not be negative or NaN, .* {bad}"):
        DiagonalGaussian(torch.zeros(3), torch.tensor([1.0, bad, 0.0]))
    DiagonalGaussian(torch.zeros(3), torch.tensor([0.0, math.inf, 1.0]))


def test_densities_equal_torch_distributions():
    mean, value = randn(3, 4, seed=0), randn(2, 3, 4, seed=1)
    covariance = covariance_of(randn(3, 4, 4, seed=2)) + torch.eye(4)
    full = JointGaussian(mean, covariance)
    # safe_cholesky adds 1e-8 of the mean variance.
    expected = MultivariateNormal(mean, covariance).log_prob(value)
    torch.testing.assert_close(full.log_prob(value), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(full.variance, covariance.diagonal(dim1=-2, dim2=-1))
    diagonal = DiagonalGaussian(mean, full.variance)
    expected = torch.distributions.Normal(mean, full.variance.sqrt()).log_prob(value).sum(-1)
    torch.testing.assert_close(diagonal.log_prob(value), expected)


def test_samples_have_the_moments_they_should():
    mean = randn(2, 3, seed=0)
    covariance = covariance_of(randn(2, 3, 3, seed=1)) + torch.eye(3)
    full = JointGaussian(mean, covariance)
    diagonal = DiagonalGaussian(mean, full.variance)
    count = 100_000
    for distribution, expected in ((full, covariance), (diagonal, torch.diag_embed(full.variance))):
        generator = torch.Generator().manual_seed(2)
        samples = distribution.rsample((count,), generator=generator)
        assert samples.shape == (count, 2, 3)
        # Five standard errors, which are √(v/n) for a mean and at most √(2 v²/n) for a covariance.
        largest = full.variance.max()
        torch.testing.assert_close(
            samples.mean(0), mean, rtol=0, atol=5 * float((largest / count).sqrt())
        )
        centred = samples - mean
        empirical = torch.einsum("sbi,sbj->bij", centred, centred) / count
        torch.testing.assert_close(
            empirical, expected, rtol=0, atol=5 * float(largest * (2 / count) ** 0.5)
        )


def test_a_generator_gives_bitwise_equal_draws_that_pass_gradients():
    mean = randn(2, 3, seed=0).requires_grad_()
    covariance = (covariance_of(randn(2, 3, 3, seed=1)) + torch.eye(3)).requires_grad_()
    for distribution in (
        JointGaussian(mean, covariance),
        DiagonalGaussian(mean, covariance.diagonal(dim1=-2, dim2=-1)),
    ):
        first, second = (
            distribution.rsample(generator=torch.Generator().manual_seed(3)) for _ in range(2)
        )
        assert torch.equal(first, second)
        other = distribution.rsample(generator=torch.Generator().manual_seed(4))
        assert not torch.equal(first, other)
        gradients = torch.autograd.grad(first.square().sum(), [mean, covariance])
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_distributions_change_their_dtype():
    mean, covariance = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    for law in (JointGaussian(mean, covariance), DiagonalGaussian(mean, covariance.diagonal())):
        narrow = law.to(torch.float32)
        assert narrow.mean.dtype == narrow.variance.dtype == torch.float32
        torch.testing.assert_close(narrow.variance.double(), law.variance)
        with pytest.raises(ValueError, match="dtype must be"):
            law.to(torch.float16)
