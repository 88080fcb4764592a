"""Blur of lens, motion and zoom."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from probseq_apps.data.filters import gaussian_filter, length_scale, motion_filter, zoom

# Radius of the disk and standard deviation of its softening, in pixels, for 32x32 images. The
# first three disks are single pixels: the softening alone blurs. That can't be scaled up, so for
# larger images the radii are those of ImageNet-C (3, 4, 6, 8, 10 for 224 pixels), in proportion.
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
_DEFOCUS_LARGE = tuple(radius * 32 / 224 for radius in (3, 4, 6, 8, 10))


def defocus_blur(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Average over a disk, as a lens out of focus does; the disk's edge is softened."""
    del generator
    scale = length_scale(images)
    if scale == 1:
        radius, softness = _DEFOCUS[severity - 1]
    else:
        radius, softness = scale * _DEFOCUS_LARGE[severity - 1], 0.5
    # The softening kernel reaches one pixel.
    reach = math.floor(radius) + 1
    steps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    disk = (steps[:, None] ** 2 + steps[None, :] ** 2 <= radius**2).to(images.dtype)
    soft = gaussian_filter(disk[None, None], disk.new_tensor([softness]), truncate=1 / softness)
    kernel = soft / soft.sum()
    channels = images.flatten(0, 1).unsqueeze(1)
    padded = functional.pad(channels, (reach,) * 4, mode="reflect")
    return functional.conv2d(padded, kernel).view_as(images)


def gaussian_blur(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Blur with a Gaussian."""
    del generator
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1] * length_scale(images)
    return gaussian_filter(images, images.new_tensor([sigma]))


def motion_blur(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Blur along a line within 45 degrees of the horizontal, another one for each image."""
    # The original has sigma 2 twice, with reaches that make no difference beyond three sigma.
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.25), (9, 2.5))[severity - 1]
    scale = length_scale(images)
    draw = torch.rand(len(images), generator=generator, device=images.device)
    return motion_filter(images, radius * scale, sigma * scale, 90 * draw - 45)


def zoom_blur(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Average over zooms in steps of 1%, as of a camera that moves forward."""
    del generator
    last = (6, 11, 16, 21, 26)[severity - 1]
    total = images.clone()
    for percent in range(last):
        total += zoom(images, 1 + percent / 100)
    return total / (last + 1)
