"""Image filters that corruptions and augmentation share, batched on the images' device."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from probseq_apps.data.transforms import pixel_grid, sample_at


def gaussian_filter(
    images: Float[Tensor, "n c h w"],
    sigma: Float[Tensor, " m"],
    *,
    truncate: float = 4.0,
    padding: str = "replicate",
) -> Float[Tensor, "n c h w"]:
    """Blur with a Gaussian.

    Args:
        images: images.
        sigma: positive standard deviation in pixels, one for each image or a single one for all.
        truncate: the kernel ends at this many of the largest standard deviations.
        padding: how an image goes on beyond its border: ``"replicate"`` or ``"reflect"``.
    """
    radius = int(truncate * float(sigma.max()) + 0.5)
    if radius == 0:
        return images
    taps = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    kernels = torch.exp(-0.5 * (taps / sigma[:, None]) ** 2)
    kernels = kernels / kernels.sum(1, keepdim=True)
    padded = functional.pad(images, (radius,) * 4, mode=padding)
    return _correlate(_correlate(padded, kernels, dim=-2), kernels, dim=-1)


def _correlate(
    padded: Float[Tensor, "n c h w"], kernels: Float[Tensor, "m k"], dim: int
) -> Float[Tensor, "n c h2 w2"]:
    """Weighted sum of shifted images, so that each image may have a kernel of its own."""
    size = padded.shape[dim] - kernels.shape[1] + 1
    total = torch.zeros_like(padded.narrow(dim, 0, size))
    for shift, weight in enumerate(kernels.unbind(1)):
        total += weight[:, None, None, None] * padded.narrow(dim, shift, size)
    return total


def motion_filter(
    images: Float[Tensor, "n c h w"], radius: float, sigma: float, angles: Float[Tensor, " n"]
) -> Float[Tensor, "n c h w"]:
    """Blur along a line that starts at the pixel, with weights that fall like half a Gaussian.

    ImageMagick's motion blur, which CIFAR-10-C uses, rounds the places on the line to pixels; here
    they are interpolated.

    Args:
        images: images.
        radius: the line is 2 radius pixels long.
        sigma: standard deviation of the weights in pixels.
        angles: direction of each image's line in degrees.
    """
    height, width = images.shape[-2:]
    rows, columns = pixel_grid(images)
    rows, columns = rows + (height - 1) / 2, columns + (width - 1) / 2
    radians = angles[:, None, None] * (math.pi / 180)
    # Beyond four standard deviations nothing is left.
    taps = range(int(min(2 * radius, math.ceil(4 * sigma))) + 1)
    weights = [math.exp(-0.5 * (tap / sigma) ** 2) for tap in taps]
    total = torch.zeros_like(images)
    for tap, weight in zip(taps, weights, strict=True):
        moved_rows = rows + tap * torch.sin(radians)
        moved_columns = columns + tap * torch.cos(radians)
        total += weight / sum(weights) * sample_at(images, moved_rows, moved_columns, "border")
    return total


def zoom(images: Float[Tensor, "n c h w"], factor: float) -> Float[Tensor, "n c h w"]:
    """Enlarge images about their centre, by a factor of at least 1; the size stays."""
    height, width = images.shape[-2:]
    rows, columns = pixel_grid(images)
    size = (len(images), height, width)
    from_rows = (rows / factor + (height - 1) / 2).expand(size)
    from_columns = (columns / factor + (width - 1) / 2).expand(size)
    return sample_at(images, from_rows, from_columns, "border")


def length_scale(images: Float[Tensor, "n c h w"]) -> float:
    """How much longer a length in pixels must be than the one for 32x32 images.

    It grows with the size, and is 1 below 32 pixels too: half a pixel of blur can't be halved.
    """
    return max(1.0, images.shape[-1] / 32)
