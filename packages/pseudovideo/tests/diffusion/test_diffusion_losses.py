"""The hybrid loss: whose gradient reaches which channels, and by which weight."""

import pytest
import torch

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.likelihood import vlb_terms
from pseudovideo.diffusion.objective import hybrid_losses


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    diffusion = GaussianDiffusion.make(4000, "cosine")
    t = torch.tensor([0, 1, 2000, 3999])
    levels = torch.randint(256, (4, 3, 4, 4), generator=generator)
    x0 = levels.double() / 127.5 - 1
    noise = torch.randn(4, 3, 4, 4, dtype=torch.float64, generator=generator)
    output = torch.randn(4, 6, 4, 4, dtype=torch.float64, generator=generator)
    return diffusion, output.requires_grad_(), x0, diffusion.add_noise(x0, noise, t), noise, t


def test_the_bounds_gradient_on_the_mean_channels_is_exactly_0(case):
    output = case[1]
    (gradient,) = torch.autograd.grad(hybrid_losses(*case).vlb.sum(), output)
    assert torch.equal(gradient[:, :3], torch.zeros_like(gradient[:, :3]))
    assert bool((gradient[:, 3:].abs() > 0).all())


def test_the_squared_errors_gradient_on_the_variance_channels_is_exactly_0(case):
    output, noise = case[1], case[4]
    (gradient,) = torch.autograd.grad(hybrid_losses(*case).mse.sum(), output)
    assert torch.equal(gradient[:, 3:], torch.zeros_like(gradient[:, 3:]))
    expected = 2 * (output.detach()[:, :3] - noise) / (3 * 4 * 4)
    torch.testing.assert_close(gradient[:, :3], expected)


def test_the_loss_is_the_squared_error_and_4_bounds_for_4000_steps(case):
    diffusion, output, x0, x_t, noise, t = case
    losses = hybrid_losses(*case)
    for entry in range(4):
        pairs = zip(output[entry, :3].flatten(), noise[entry].flatten(), strict=True)
        squares = [(a.item() - b.item()) ** 2 for a, b in pairs]
        assert losses.mse[entry].item() == pytest.approx(sum(squares) / len(squares))
    terms = vlb_terms(diffusion, output, x0, x_t, t, limit=None)
    torch.testing.assert_close(losses.vlb, terms)
    torch.testing.assert_close(losses.loss, losses.mse + 4 * losses.vlb)


def test_single_precision_gives_the_same_losses(case):
    diffusion, *tensors, t = case
    single = hybrid_losses(diffusion, *(tensor.float() for tensor in tensors), t)
    for exact, rough in zip(hybrid_losses(*case), single, strict=True):
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough.double(), exact, rtol=1e-3, atol=1e-4)


def test_under_autocast_losses_are_computed_in_single_precision(case):
    """A network returns bfloat16 there; whatever is done with it is not done in bfloat16."""
    diffusion, output, x0, x_t, noise, t = case
    half = output.detach().bfloat16()
    inputs = x0.float(), x_t.float(), noise.float(), t
    with torch.autocast("cpu", torch.bfloat16):
        found = hybrid_losses(diffusion, half, *inputs)
    expected = hybrid_losses(diffusion, half.float(), *inputs)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
def test_the_squared_error_is_least_at_the_best_prediction_of_gaussian_images(prediction):
    """Its gradient at E[target | x_t], the regression on x_t of what is learned, has mean 0."""
    diffusion = GaussianDiffusion.make(100, "cosine", prediction)
    generator, count, std, t = torch.Generator().manual_seed(0), 400_000, 0.5, 50
    x0, noise = torch.randn(2, count, 1, 1, 1, dtype=torch.float64, generator=generator)
    x_t = diffusion.add_noise(std * x0, noise, t)
    kept = float(diffusion.alpha_bars[t])
    image = std**2 * kept**0.5 / (kept * std**2 + 1 - kept)
    slope = {"x0": image, "epsilon": (1 - kept**0.5 * image) / (1 - kept) ** 0.5}
    slope["v"] = kept**0.5 * slope["epsilon"] - (1 - kept) ** 0.5 * image
    factor = torch.tensor(slope[prediction], dtype=torch.float64, requires_grad=True)
    output = torch.cat((factor * x_t, torch.zeros_like(x_t)), dim=1)
    loss = hybrid_losses(diffusion, output, std * x0, x_t, noise, torch.full((count,), t)).mse
    (gradient,) = torch.autograd.grad(loss.mean(), factor)
    assert abs(gradient.item()) < 0.01  # 4 standard errors; ε for x_0 would leave 0.5 or more


def test_the_images_are_not_clipped_in_training(case):
    diffusion, output, x0, x_t, _, t = case
    clipped = vlb_terms(diffusion, output, x0, x_t, t, limit=1.0)
    assert not torch.allclose(clipped, hybrid_losses(*case).vlb)
