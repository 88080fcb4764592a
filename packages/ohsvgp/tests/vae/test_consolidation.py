"""Elastic weight consolidation against loops over points and closed forms."""

import torch
from torch import nn

from ohsvgp.vae import Consolidation, diagonal_fisher
from ohsvgp.vae.consolidation import predictive_fisher
from probseq.gaussians import DiagonalGaussian


def test_information_is_the_sum_of_squared_gradients_of_single_points() -> None:
    generator = torch.Generator().manual_seed(0)
    # More points than are taken at once.
    x = torch.randn(37, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(37, 2, generator=generator, dtype=torch.float64)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    parameters = list(network.parameters())
    log_prob = -0.5 * (y - network(x)).square().sum(-1)
    expected = torch.zeros(sum(parameter.numel() for parameter in parameters)).double()
    for point in log_prob:
        gradients = torch.autograd.grad(point, parameters, retain_graph=True)
        expected += torch.cat([gradient.flatten() for gradient in gradients]).square()
    torch.testing.assert_close(diagonal_fisher(log_prob, parameters), expected)


def test_information_of_a_linear_model_is_its_precision() -> None:
    # y = w x + ε: F = Σ x²/σ², estimated from targets that the model draws.
    generator = torch.Generator().manual_seed(1)
    x = torch.linspace(-1.0, 1.0, 4000, dtype=torch.float64)
    w, variance = torch.tensor(0.7, dtype=torch.float64, requires_grad=True), 0.25
    y = w.detach() * x + variance**0.5 * torch.randn(4000, generator=generator).double()
    log_prob = -0.5 * (y - w * x).square() / variance
    found = diagonal_fisher(log_prob, [w])
    torch.testing.assert_close(found[0], x.square().sum() / variance, rtol=0.1, atol=0)


def test_information_on_a_decoders_bias_is_the_noises_precision_at_every_time() -> None:
    decoder = nn.Linear(2, 3).double()
    latent = DiagonalGaussian(torch.zeros(2, 800).double(), torch.ones(2, 800).double())
    found = predictive_fisher(
        latent,
        decoder,
        torch.tensor(0.2, dtype=torch.float64),
        [decoder.bias],
        torch.Generator().manual_seed(0),
    )
    # Means of 800 squares of standard normals: within five standard errors.
    torch.testing.assert_close(found, torch.full((3,), 800 / 0.2).double(), rtol=0.25, atol=0)


def test_penalty_pulls_back_in_proportion_to_the_information() -> None:
    theta = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    fisher = torch.tensor([4.0, 0.0, 1.0], dtype=torch.float64)
    kept = Consolidation([theta])
    assert float(kept.penalty([theta.detach()])) == 0.0
    kept.consolidate([theta], fisher)
    moved = (theta.detach() + torch.tensor([0.5, 3.0, -1.0]).double()).requires_grad_()
    penalty = kept.penalty([moved])
    (gradient,) = torch.autograd.grad(penalty, moved)
    torch.testing.assert_close(gradient, torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64))
    torch.testing.assert_close(penalty.detach(), torch.tensor(1.0, dtype=torch.float64))


def test_tasks_add_their_information_around_the_last_parameters() -> None:
    first, second = torch.zeros(2).double(), torch.tensor([1.0, 2.0]).double()
    kept = Consolidation([first])
    kept.consolidate([first], torch.tensor([1.0, 2.0]).double())
    kept.consolidate([second], torch.tensor([3.0, 0.0]).double())
    # ½ (4 (3 − 1)² + 2 (3 − 2)²)
    assert float(kept.penalty([torch.tensor([3.0, 3.0]).double()])) == 9.0
