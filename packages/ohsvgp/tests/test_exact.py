"""The dense Gaussian process against conditioning written out and torch.distributions."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from ohsvgp import Gaussian
from ohsvgp.exact import ExactGP, exact_posterior, log_marginal_likelihood
from probseq.kernels import RBF, Matern32


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture
def problem() -> tuple[Matern32, Tensor, Tensor, Tensor]:
    kernel = Matern32(2, lengthscale=0.8, outputscale=1.7).double().requires_grad_(False)
    return kernel, normal(15, 2), normal(15, seed=1), normal(6, 2, seed=2)


def test_posterior_is_the_conditional_of_the_joint_gaussian(
    problem: tuple[Matern32, Tensor, Tensor, Tensor],
) -> None:
    kernel, x, y, x_new = problem
    everything = torch.cat([x, x_new])
    joint = kernel(everything, everything)
    joint[:15, :15] += 0.3 * torch.eye(15, dtype=torch.float64)
    # The precision's blocks give the conditional without any formula of regression.
    precision = torch.linalg.inv(joint)
    covariance = torch.linalg.inv(precision[15:, 15:])
    mean = -covariance @ precision[15:, :15] @ y
    found = exact_posterior(kernel, 0.3, x, y, x_new)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, covariance.diagonal())


def test_evidence_is_the_density_of_the_targets(
    problem: tuple[Matern32, Tensor, Tensor, Tensor],
) -> None:
    kernel, x, y, _ = problem
    K = kernel(x, x) + 0.3 * torch.eye(15, dtype=torch.float64)
    expected = MultivariateNormal(torch.zeros_like(y), K).log_prob(y)
    torch.testing.assert_close(log_marginal_likelihood(kernel, 0.3, x, y), expected)


def test_masked_points_do_not_count(problem: tuple[Matern32, Tensor, Tensor, Tensor]) -> None:
    kernel, x, y, _ = problem
    mask = torch.ones(2, 15, dtype=torch.bool)
    mask[0, [2, 7]] = False
    both = log_marginal_likelihood(kernel, 0.3, x, torch.stack([y, 2 * y]), mask=mask)
    kept = mask[0]
    torch.testing.assert_close(both[0], log_marginal_likelihood(kernel, 0.3, x[kept], y[kept]))
    torch.testing.assert_close(both[1], log_marginal_likelihood(kernel, 0.3, x, 2 * y))


def test_series_and_kernels_of_a_batch_equal_single_ones() -> None:
    lengthscale = torch.tensor([0.4, 1.2], dtype=torch.float64)[:, None, None]
    batch = RBF(1, batch_shape=(2,), lengthscale=lengthscale).double().requires_grad_(False)
    noise = torch.tensor([0.1, 0.5], dtype=torch.float64)
    x, y, x_new = normal(9, 1), normal(2, 9, seed=1), normal(4, 1, seed=2)
    found = exact_posterior(batch, noise, x, y, x_new)
    evidence = log_marginal_likelihood(batch, noise, x, y)
    for i in range(2):
        single = RBF(1, lengthscale=lengthscale[i]).double().requires_grad_(False)
        alone = exact_posterior(single, noise[i], x, y[i], x_new)
        torch.testing.assert_close(found.mean[i], alone.mean)
        torch.testing.assert_close(found.variance[i], alone.variance)
        torch.testing.assert_close(evidence[i], log_marginal_likelihood(single, noise[i], x, y[i]))


@pytest.mark.parametrize("dim", [1, 2])
def test_an_exact_process_knows_all_that_it_was_given(dim: int) -> None:
    x = torch.randn(12, dim, dtype=torch.float64).squeeze(-1)
    y, kernel = torch.randn(3, 12, dtype=torch.float64), RBF(dim)
    gp = ExactGP(kernel, Gaussian(0.3))
    with pytest.raises(ValueError, match="call update first"):
        gp.predict(x)
    for part in torch.arange(12).chunk(2):
        gp.update(x[part], y[:, part])
    points = x.reshape(12, -1)
    law = exact_posterior(kernel, gp.likelihood.noise, points, y, points[:5])
    torch.testing.assert_close(gp.predict(x[:5]).mean, law.mean)
    noisy = gp.predict(x[:5], include_noise=True).variance
    torch.testing.assert_close(noisy, law.variance + gp.likelihood.noise)
