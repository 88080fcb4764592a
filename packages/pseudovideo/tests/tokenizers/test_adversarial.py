import pytest
import torch
from torch import nn

from pseudovideo.tokenizers.adversarial import (
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    r1_penalty,
)
from pseudovideo.tokenizers.discriminator import Discriminator


class _Polynomial(nn.Module):
    """The logits a·x + b x²/2 of each pixel."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(-0.3, dtype=torch.float64))

    def forward(self, images):
        return (self.a * images + self.b * images.square() / 2).flatten(1)


def _images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=generator)


def test_the_generator_sees_the_slope_and_the_discriminator_nothing():
    discriminator, fake = _Polynomial(), _images().requires_grad_()
    loss = hinge_generator_loss(discriminator, fake)
    loss.backward()
    assert loss.item() == pytest.approx(-discriminator(fake).mean().item())
    torch.testing.assert_close(fake.grad, -(0.7 - 0.3 * fake.detach()) / fake.numel())
    assert discriminator.a.grad is None


def test_the_hinge_is_that_of_a_loop():
    real, fake = torch.tensor([[-2.0, 0.5], [1.5, 1.0]]), torch.tensor([[-2.0, -0.5], [3.0, 0.0]])
    expected = (3 + 0.5) / 4 + (0.5 + 4 + 1) / 4
    assert hinge_discriminator_loss(real, fake).item() == pytest.approx(expected)


def test_the_gradient_penalty_and_its_gradient_are_those_of_a_polynomial():
    discriminator, images = _Polynomial(), _images()
    penalty = r1_penalty(discriminator, images)
    penalty.backward()
    # The mean of 18 logits: ∂D/∂x = (a + b x) / 18 at each pixel, 18 of them in an image.
    slope = 0.7 - 0.3 * images
    assert penalty.item() == pytest.approx((slope**2).mean().item() / 18)
    assert discriminator.a.grad is not None
    assert discriminator.b.grad is not None
    assert discriminator.a.grad.item() == pytest.approx(2 * slope.mean().item() / 18)
    assert discriminator.b.grad.item() == pytest.approx(2 * (slope * images).mean().item() / 18)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(r1_penalty(discriminator, images), penalty)


def test_the_adaptive_weight_is_the_quotient_of_gradient_norms():
    layer = nn.Parameter(_images())
    torch.manual_seed(0)
    one, other = torch.randn_like(layer), torch.randn_like(layer)
    losses = (layer * one).sum(), (layer * other).sum()
    weight = adaptive_weight(*losses, layer, largest=10.0)
    assert weight.item() == pytest.approx((one.norm() / other.norm()).item(), rel=1e-5)
    assert not weight.requires_grad
    assert layer.grad is None
    assert adaptive_weight(*losses, layer, largest=0.5).item() == 0.5
    sum(losses).backward()  # the graph is still there


def test_the_adaptive_weight_is_finite_whatever_the_gradients():
    layer = nn.Parameter(torch.ones(3))
    good, flat, bad = layer.sum(), 0 * layer.sum(), (layer * torch.nan).sum()
    infinite = (layer * torch.inf).sum()
    assert adaptive_weight(good, flat, layer, largest=50.0).item() == 50
    assert adaptive_weight(flat, good, layer, largest=50.0).item() == 0
    assert adaptive_weight(flat, flat, layer, largest=50.0).item() == 0
    for first, second in ((good, bad), (bad, good), (infinite, good), (infinite, infinite)):
        assert adaptive_weight(first, second, layer, largest=50.0).item() == 0


def test_the_gradient_penalty_of_a_network_is_exact_under_autocast():
    torch.manual_seed(0)
    discriminator, images = Discriminator(1, 8, width=4), torch.randn(3, 1, 8, 8)
    expected = r1_penalty(discriminator, images)
    with torch.autocast("cpu", torch.bfloat16):
        inside = r1_penalty(discriminator, images)
    torch.testing.assert_close(inside, expected, rtol=1e-6, atol=0.0)
