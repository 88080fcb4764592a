"""Noise of each pixel by itself."""

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian_noise(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Add independent Gaussian noise, as of a sensor in low light."""
    scale = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return images + scale * torch.randn(images.shape, generator=generator, device=images.device)


def shot_noise(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Draw photon counts: Poisson with a mean of so many photons for white."""
    photons = (500.0, 250.0, 100.0, 75.0, 50.0)[severity - 1]
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Set a share of all values to black or white, with equal chances."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw = torch.rand(images.shape, generator=generator, device=images.device)
    salted = torch.where(draw < share / 2, torch.ones_like(images), images)
    return torch.where(draw > 1 - share / 2, torch.zeros_like(images), salted)
