"""The parts of the bound against torch's distributions."""

import torch
from torch.distributions import Normal, kl_divergence

from pseudovideo.hvae.base import standard_normal_kl, step_costs


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(4, 2, 3, 5, generator=g, dtype=torch.float64) for _ in range(2))


def test_a_step_costs_the_kl_between_two_gaussians_and_the_last_a_density() -> None:
    target, mean = pair()
    mse = (target - mean).square().mean((1, 2, 3))
    costs = step_costs(mse, torch.tensor([1, 2, 1, 7]), noise_std=0.3, delta=0.5)
    between = kl_divergence(Normal(target, 0.3), Normal(mean, 0.5)).mean((1, 2, 3))
    density = -Normal(mean, 0.5).log_prob(target).mean((1, 2, 3))
    expected = torch.stack([density[0], between[1], density[2], between[3]])
    torch.testing.assert_close(costs, expected)


def test_equal_gaussians_cost_nothing() -> None:
    costs = step_costs(torch.zeros(2), torch.tensor([2, 3]), noise_std=0.3, delta=0.3)
    assert torch.equal(costs, torch.zeros(2))


def test_the_kl_to_the_standard_normal_is_torchs() -> None:
    mean, _ = pair()
    for std in (0.02, 1.0, 1.5):
        expected = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).mean((1, 2, 3))
        torch.testing.assert_close(standard_normal_kl(mean, std), expected)
