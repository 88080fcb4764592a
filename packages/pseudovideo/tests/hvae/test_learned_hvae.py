"""The HVAE with a learned encoder: its gradients and its prior."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pseudovideo.hvae import LearnedEncoderHVAE

Make = Callable[..., Any]


def test_the_image_itself_is_level_0(tiny: Make, stirred: Make, few: Tensor) -> None:
    model = stirred(LearnedEncoderHVAE(tiny()))
    encoded = model.encode(few, torch.tensor([0, 1, 0, 4, 2]))
    assert torch.equal(encoded[[0, 2]], few[[0, 2]])
    direct = model.encoder(few[3:4], torch.tensor([1000.0])).sample
    torch.testing.assert_close(encoded[3:4], direct)


def test_the_gradient_is_that_of_finite_differences(tiny: Make, stirred: Make, few: Tensor) -> None:
    model, images = stirred(LearnedEncoderHVAE(tiny(noise_std=0.3)).double()), few.double()
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, generator=g, dtype=torch.float64)
    t = torch.tensor([1, 2, 3, 4, 4])

    def loss() -> Tensor:
        terms = model.level_terms(images, t, noise)
        return terms.step.sum() + terms.prior.sum()

    parameters = tuple(model.parameters())
    exact = torch.autograd.grad(loss(), parameters)
    way = [torch.randn(p.shape, generator=g, dtype=torch.float64) for p in parameters]
    along = sum((a * w).sum() for a, w in zip(exact, way, strict=True))
    values, size = [], 1e-6
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, w in zip(parameters, way, strict=True):
                parameter.add_(sign * size * w)
            values.append(loss())
    slope = (values[0] - values[1]) / (2 * size)
    torch.testing.assert_close(slope, along, rtol=1e-5, atol=0)


def test_a_fresh_encoder_costs_the_kl_of_the_noise_alone(tiny: Make, few: Tensor) -> None:
    model = LearnedEncoderHVAE(tiny(noise_std=0.5))
    bound = model.bound(few, generator=torch.Generator().manual_seed(0))
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.0, 0.5), torch.distributions.Normal(0.0, 1.0)
    )
    torch.testing.assert_close(bound.prior, kl.expand(5))


def test_the_prior_is_standard_normal_and_needs_no_images(tiny: Make, few: Tensor) -> None:
    model = LearnedEncoderHVAE(tiny())
    z = model.draw_prior(torch.arange(500), None, seed=2)
    # Four standard errors of 500·64 numbers.
    assert abs(z.mean()) < 4 / 32000**0.5
    assert abs(z.var() - 1) < 4 * (2 / 32000) ** 0.5
    assert torch.equal(model.draw_prior(torch.arange(500), few, seed=2), z)


def gradient(loss: Tensor, model: LearnedEncoderHVAE) -> Tensor:
    """With respect to the encoder, as one vector."""
    parts = torch.autograd.grad(loss, tuple(model.encoder.parameters()), allow_unused=True)
    parameters = model.encoder.parameters()
    pairs = zip(parts, parameters, strict=True)
    return torch.cat([(0 * p if g is None else g).flatten() for g, p in pairs])


def test_gradients_reach_the_encoder_through_sample_and_target(
    tiny: Make, stirred: Make, few: Tensor
) -> None:
    model, images = stirred(LearnedEncoderHVAE(tiny(noise_std=0.3)).double()), few.double()
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, generator=g, dtype=torch.float64)
    t, delta = torch.tensor([1, 2, 3, 4, 4]), 1.25 * 0.3
    terms = model.level_terms(images, t, noise)
    full = gradient(terms.step.sum() + terms.prior.sum(), model)

    def distance(sample: Tensor, target: Tensor) -> Tensor:
        mean = model.decode(sample + 0.3 * noise, t)
        return (target - mean).square().mean((1, 2, 3)).sum() / (2 * delta**2)

    frame, target = model.encode(images, t), model.encode(images, t - 1)
    through_sample = gradient(distance(frame, target.detach()), model)
    through_target = gradient(distance(frame.detach(), target), model)
    last = t == 4
    through_prior = gradient(0.5 * model.encode(images, t)[last].square().mean() * 2, model)
    for part in (through_sample, through_target, through_prior):
        assert part.norm() > 1e-3 * full.norm()
    torch.testing.assert_close(through_sample + through_target + through_prior, full)
