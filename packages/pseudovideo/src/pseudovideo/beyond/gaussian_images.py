"""Gaussian images with the covariance of others: data whose best models are known exactly.

The best prediction of a diffusion model, its likelihood and the Fréchet distance in pixels are in
closed form for them, so that what a model has not learned can be told from what nobody can.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from probseq.images import to_bytes

__all__ = ["NUM_TRAIN", "GaussianImages", "gaussian_images", "noise_like"]

# The largest standard deviation of a pixel, of images in -1..1: beyond four of them they are cut.
_LARGEST = 0.25
# Standard deviation of white noise, two levels of 0..255: rounding is then noise, too.
_WHITE = 2 / 127.5
# Variance of rounding to a level.
_ROUNDING = (2 / 255) ** 2 / 12
NUM_TRAIN, _NUM_HELD_OUT = 50_000, 5_000
# Images whose covariance noise has.
_MOST = 2000


class GaussianImages(NamedTuple):
    """Images that are drawn from N(0, Σ), and Σ itself, of images in -1..1 with rounded levels."""

    train: UInt8[Tensor, "n c h w"]
    validation: UInt8[Tensor, "m c h w"]
    test: UInt8[Tensor, "m c h w"]
    covariance: Float64[Tensor, "d d"]


def gaussian_images(images: UInt8[Tensor, "k c h w"], num_train: int = NUM_TRAIN) -> GaussianImages:
    """Draw images with the covariance of others, less contrast and mean grey: train, test and more.

    Σ = s·S + v·I of the images' covariance S, with s such that few are cut, and a little white
    noise v, so that Σ has an inverse. The training part has ``num_train``, the others 5,000 each.
    """
    if len(images) < 2 or num_train < 1:
        raise ValueError(
            "images and num_train must be at least 2 and 1, for a covariance and images of it, got "
            f"{len(images)} and {num_train}"
        )
    rows = images.flatten(1).double() / 127.5 - 1
    covariance = rows.T.cov()
    if bool((images == images[:1]).all()):
        raise ValueError(f"images must differ, and all {len(images)} are the same")
    covariance *= _LARGEST**2 / covariance.diagonal().max()
    covariance += _WHITE**2 * torch.eye(len(covariance), dtype=torch.float64)
    sizes = (num_train, _NUM_HELD_OUT, _NUM_HELD_OUT)
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(sum(sizes), len(covariance), generator=generator, dtype=torch.float64)
    samples = samples @ torch.linalg.cholesky(covariance).T  # x = L ε with Σ = L Lᵀ
    levels = to_bytes(((samples + 1) / 2).float().unflatten(1, images.shape[1:]))
    covariance += _ROUNDING * torch.eye(len(covariance), dtype=torch.float64)
    train, validation, test = levels.split(sizes)
    return GaussianImages(train, validation, test, covariance)


def noise_like(
    images: UInt8[Tensor, "n c h w"], num: int, *, seed: int
) -> UInt8[Tensor, "num c h w"]:
    """Draw noise that may be taken for images by brightness, contrast and frequencies.

    Half of it has mean and covariance of the first 2,000 images, x̄ + Σᵢ wᵢ (xᵢ − x̄)/√n with w ~
    N(0, I); the other half is a mixture of that and of white noise, each in another ratio.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = images[:_MOST].flatten(1).float()
    mean = rows.mean(0)
    weights = torch.randn(num, len(rows), generator=generator) / len(rows) ** 0.5
    samples = mean + weights @ (rows - mean)
    white = 255 * torch.rand(samples.shape, generator=generator)
    share = torch.rand(num, 1, generator=generator)
    share[: num // 2] = 0.0
    levels = torch.lerp(samples, white, share).round().clamp(0, 255).to(torch.uint8)
    return levels.unflatten(1, images.shape[1:])
