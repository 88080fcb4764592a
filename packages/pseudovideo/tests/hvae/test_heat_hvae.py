"""The HVAE of the heat equation: its encoder, and its prior of blurred training images."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudovideo.hvae import HeatHVAE, heat_blur

Make = Callable[..., Any]


def test_the_encoder_blurs_by_the_level(tiny: Make, few: Tensor) -> None:
    model = HeatHVAE(tiny(num_levels=3, sigma_max=8.0))
    encoded = model.encode(few, torch.tensor([0, 1, 2, 3, 2]))
    expected = heat_blur(few, torch.tensor([0.0, 0.5, 2.0, 8.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(encoded, expected)
    assert torch.equal(encoded[0], few[0])


def test_the_prior_is_blurred_training_images_with_noise(tiny: Make, few: Tensor) -> None:
    # Little noise and little blur: the image behind each z_T can be told.
    model = HeatHVAE(tiny(noise_std=0.05, sigma_max=0.6))
    z = model.draw_prior(torch.arange(2000), few, seed=3)
    blurred = heat_blur(few, torch.full((5,), 0.6, dtype=torch.float64))
    distances = (z[:, None] - blurred).square().mean((2, 3, 4))
    chosen = distances.argmin(1)
    counts = chosen.bincount(minlength=5)
    # Five standard deviations of a binomial count with p = 1/5.
    assert (counts - 400).abs().max() < 5 * (2000 * 0.2 * 0.8) ** 0.5
    noise = z - blurred[chosen]
    assert noise.std().item() == pytest.approx(1.25 * 0.05, rel=0.02)
    assert abs(noise.mean().item()) < 1e-3
    assert noise.mean(0).abs().max() < 5 * 1.25 * 0.05 / 2000**0.5


def test_more_training_images_than_samples_and_a_single_one_serve(tiny: Make, few: Tensor) -> None:
    model = HeatHVAE(tiny())
    g = torch.Generator().manual_seed(0)
    assert model.sample(2, images=few.repeat(50, 1, 1, 1), generator=g).shape == (2, 1, 8, 8)
    assert model.sample(3, images=few[:1], generator=g).shape == (3, 1, 8, 8)


def test_the_kl_at_the_last_level_is_left_out(tiny: Make, few: Tensor) -> None:
    model = HeatHVAE(tiny())
    assert torch.equal(model.prior_kl(few), torch.zeros(5))
    parts = model.training_losses(few, generator=torch.Generator().manual_seed(0))
    assert parts["prior"] == 0
    assert torch.equal(parts["loss"].detach(), parts["steps"])


def test_sampling_without_or_with_other_images_is_refused(tiny: Make, plain_calls: None) -> None:
    model = HeatHVAE(tiny())
    with pytest.raises(ValueError, match=r"images must be the training images.*got None"):
        model.sample(2)
    with pytest.raises(ValueError, match=r"images must be floats of shape \(batch, 1, 8, 8\)"):
        model.sample(2, images=torch.zeros(4, 3, 8, 8))


def test_the_encoder_is_no_parameter_and_is_not_stored(tiny: Make) -> None:
    model = HeatHVAE(tiny())
    assert all(name.startswith("decoder.") for name in model.state_dict())
