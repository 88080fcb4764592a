"""Posterior and bound of the GP-VAE against dense Gaussian algebra."""

import math

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from ohsvgp import LegS
from ohsvgp.core import Site, posterior, transition
from ohsvgp.inducing import Inducing, hyperparameters
from ohsvgp.process import change_inducing
from ohsvgp.state import OnlineState
from ohsvgp.vae.objective import (
    Amortised,
    amortised_posterior,
    gaussian_log_density,
    latent_samples,
)
from ohsvgp.vae.task import TaskCovariances, relate
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF, Kernel

M, N = 5, 7


def kernel_of(*lengthscales: float) -> Kernel:
    batch = (len(lengthscales),)
    scale = torch.tensor(lengthscales, dtype=torch.float64)[:, None, None]
    return RBF(1, batch_shape=batch, lengthscale=scale).double().requires_grad_(False)


def window_of(kernel: Kernel, old: OnlineState | None) -> TaskCovariances:
    inducing = LegS(M).inducing(kernel, 4.0)
    x = torch.linspace(2.0, 4.0, N, dtype=torch.float64)[:, None]
    return relate(kernel, old, x, inducing, changed=False)


def old_state(kernel: Kernel, latents: int, seed: int = 3) -> OnlineState:
    generator = torch.Generator().manual_seed(seed)
    inducing: Inducing = LegS(M).inducing(kernel, 2.0)
    step = change_inducing(kernel, None, inducing, rel_jitter=None, changed=False)
    root = torch.randn(latents, M, M, generator=generator, dtype=torch.float64)
    shift = torch.randn(latents, M, generator=generator, dtype=torch.float64)
    site = Site(root @ root.mT, shift)
    return OnlineState(inducing, step.whitening, site, hyperparameters(kernel), 2.0, N)


def encodings(latents: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(N, latents, generator=generator, dtype=torch.float64)
    return mean, 0.1 + torch.rand(N, latents, generator=generator, dtype=torch.float64)


def natural_sites(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    return (1 / variance).mT, (mean / variance).mT


def amortised(
    kernel: Kernel, old: OnlineState | None, latents: int
) -> tuple[TaskCovariances, Amortised]:
    window = window_of(kernel, old)
    return window, amortised_posterior(*window, *natural_sites(*encodings(latents)))


def test_without_old_data_the_posterior_is_that_of_the_thesis() -> None:
    # Eq. C.12 and C.13 as they are printed, and dense marginals of f.
    kernel = kernel_of(0.8)
    window, found = amortised(kernel, None, 1)
    inducing = window.step.inducing
    x = torch.linspace(2.0, 4.0, N, dtype=torch.float64)[:, None]
    K_uu, K_uf = inducing.covariance(kernel)[0], inducing.cross(kernel, x)[0]
    K_uu = K_uu + window.step.whitening.jitter[0] * torch.eye(M)
    mean, variance = (value[:, 0] for value in encodings(1))
    S = K_uu + K_uf / variance @ K_uf.mT
    m = K_uu @ torch.linalg.solve(S, K_uf @ (mean / variance))
    A = K_uu @ torch.linalg.solve(S, K_uu)
    weights = torch.linalg.solve(K_uu, K_uf)
    expected_mean = weights.mT @ m
    expected = kernel(x, x)[0] - weights.mT @ (K_uu - A) @ weights
    torch.testing.assert_close(found.latent.mean[0], expected_mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.latent.variance[0], expected.diagonal(), rtol=0, atol=1e-9)


def test_without_old_data_the_complexity_is_the_divergence_from_the_prior() -> None:
    _, found = amortised(kernel_of(0.8, 1.5), None, 2)
    covariance = torch.cholesky_inverse(found.moments.root)
    q = MultivariateNormal(found.moments.mean, covariance)
    p = MultivariateNormal(torch.zeros(M, dtype=torch.float64), torch.eye(M, dtype=torch.float64))
    torch.testing.assert_close(found.complexity, kl_divergence(q, p), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.lost_information, torch.zeros(2, dtype=torch.float64))


def test_old_data_come_in_as_the_expected_ratio_of_old_posterior_and_prior() -> None:
    # E_q[log q_a(v_a)/p(v_a)], v_a | v_b ~ N(T v_b, I − T Tᵀ): the ratio is a quadratic, so the
    # mean over 2M points μ ± √M·L e_i is its expectation.
    kernel = kernel_of(0.8, 1.5)
    old = old_state(kernel, 2)
    window, found = amortised(kernel, old, 2)
    eye = torch.eye(M, dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros(M, dtype=torch.float64), eye)
    S = torch.cholesky_inverse(found.moments.root)
    q = MultivariateNormal(found.moments.mean, S)
    old_moments = posterior(old.site)
    q_a = MultivariateNormal(old_moments.mean, torch.cholesky_inverse(old_moments.root))
    step = window.step
    K_ab = old.inducing.cross_inducing(kernel, step.inducing)
    T = transition(old.whitening, K_ab, step.whitening)
    mean = (T @ found.moments.mean[..., None])[..., 0]
    root = torch.linalg.cholesky(T @ S @ T.mT + eye - T @ T.mT + 1e-12 * eye)
    points = torch.cat([mean[:, None] + sign * math.sqrt(M) * root.mT for sign in (1, -1)], dim=1)
    ratio = (q_a.log_prob(points.movedim(1, 0)) - prior.log_prob(points.movedim(1, 0))).mean(0)
    expected = kl_divergence(q, prior) - ratio
    torch.testing.assert_close(found.complexity, expected, rtol=1e-7, atol=1e-7)
    assert (found.lost_information > 0).all()


def test_a_batch_of_latents_is_a_stack_of_single_ones() -> None:
    scales = (0.6, 1.0, 1.7)
    kernel = kernel_of(*scales)
    old = old_state(kernel, 3)
    _, together = amortised(kernel, old, 3)
    mean, variance = encodings(3)
    for index, scale in enumerate(scales):
        single = kernel_of(scale)
        part = OnlineState(
            LegS(M).inducing(single, 2.0),
            old_state(single, 1).whitening,
            Site(old.site.precision[index, None], old.site.shift[index, None]),
            hyperparameters(single),
            2.0,
            N,
        )
        sites = natural_sites(mean[:, index, None], variance[:, index, None])
        alone = amortised_posterior(*window_of(single, part), *sites)
        torch.testing.assert_close(together.latent.mean[index], alone.latent.mean[0])
        torch.testing.assert_close(together.latent.variance[index], alone.latent.variance[0])
        torch.testing.assert_close(together.complexity[index], alone.complexity[0])


def test_samples_have_the_moments_of_the_latents() -> None:
    mean = torch.tensor([[0.0, 2.0], [-1.0, 5.0]], dtype=torch.float64)
    variance = torch.tensor([[1.0, 0.25], [4.0, 0.0]], dtype=torch.float64)
    f = latent_samples(DiagonalGaussian(mean, variance), 20_000, torch.Generator().manual_seed(0))
    assert f.shape == (20_000, 2, 2)
    torch.testing.assert_close(f.mean(0), mean.mT, rtol=0, atol=0.06)
    torch.testing.assert_close(f.var(0), variance.mT, rtol=0.05, atol=1e-6)


def test_density_is_that_of_torch_distributions() -> None:
    y, mean = torch.tensor([[0.3, -1.0]]), torch.tensor([[1.0, 0.5]])
    expected = Normal(mean, 0.5).log_prob(y)
    torch.testing.assert_close(gaussian_log_density(y, mean, torch.tensor(0.25)), expected)
