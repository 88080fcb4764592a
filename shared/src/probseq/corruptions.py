"""Common corruptions of images at five severities, made on the spot for any image set.

The families and constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019, "Benchmarking
neural network robustness to common corruptions and perturbations"), so that severities mean about
the same; the pixels are not the same, and accuracies on them are not accuracies on CIFAR-10-C:

- Lengths in pixels (blur radii and such) are for 32x32 images and grow with larger ones; they don't
  shrink for smaller ones. Noise levels and the like don't depend on the size.
- Random numbers are others, and bytes are rounded where the original cuts them off. ``motion_blur``
  and ``snow`` interpolate where ImageMagick rounds. ``elastic_transform``, ``pixelate``, the fourth
  severity of ``motion_blur`` and ``defocus_blur`` above 32 pixels deviate as their texts say, so
  that more severe always means more changed.
- Left out: frost, which needs photographs of frost; glass blur, whose swaps of pixels depend on
  their order; and the extra families speckle noise, spatter and saturate.
- Grey images are corrupted by the same formulas with one channel.

Numbers that compare with published ones need the published files.
"""

import io
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor
from torch.nn import functional

from probseq.errors import require
from probseq.images import (
    gaussian_filter,
    length_scale,
    motion_filter,
    pixel_grid,
    sample_at,
    to_bytes,
    to_grey,
    zoom,
)

Images: TypeAlias = Float[Tensor, "n c h w"]


def gaussian_noise(images: Images, severity: int, generator: Generator) -> Images:
    """Add independent Gaussian noise, as of a sensor in low light."""
    scale = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return images + scale * torch.randn(images.shape, generator=generator, device=images.device)


def shot_noise(images: Images, severity: int, generator: Generator) -> Images:
    """Draw photon counts: Poisson with a mean of so many photons for white."""
    photons = (500.0, 250.0, 100.0, 75.0, 50.0)[severity - 1]
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Images, severity: int, generator: Generator) -> Images:
    """Set a share of all values to black or white, with equal chances."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw = torch.rand(images.shape, generator=generator, device=images.device)
    salted = torch.where(draw < share / 2, torch.ones_like(images), images)
    return torch.where(draw > 1 - share / 2, torch.zeros_like(images), salted)


# Radius of the disk and standard deviation of its softening, in pixels, for 32x32 images. The
# first three disks are single pixels: the softening alone blurs. That can't be scaled up, so for
# larger images the radii are those of ImageNet-C (3, 4, 6, 8, 10 for 224 pixels), in proportion.
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
_DEFOCUS_LARGE = tuple(radius * 32 / 224 for radius in (3, 4, 6, 8, 10))


def defocus_blur(images: Images, severity: int, _: Generator) -> Images:
    """Average over a disk, as a lens out of focus does; the disk's edge is softened."""
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


def gaussian_blur(images: Images, severity: int, _: Generator) -> Images:
    """Blur with a Gaussian."""
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1] * length_scale(images)
    return gaussian_filter(images, images.new_tensor([sigma]))


def motion_blur(images: Images, severity: int, generator: Generator) -> Images:
    """Blur along a line within 45 degrees of the horizontal, another one for each image."""
    # The original has sigma 2 twice, with reaches that make no difference beyond three sigma.
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.25), (9, 2.5))[severity - 1]
    scale = length_scale(images)
    draw = torch.rand(len(images), generator=generator, device=images.device)
    return motion_filter(images, radius * scale, sigma * scale, 90 * draw - 45)


def zoom_blur(images: Images, severity: int, _: Generator) -> Images:
    """Average over zooms in steps of 1%, as of a camera that moves forward."""
    last = (6, 11, 16, 21, 26)[severity - 1]
    total = images.clone()
    for percent in range(last):
        total += zoom(images, 1 + percent / 100)
    return total / (last + 1)


def plasma_fractal(
    count: int, size: int, decay: float, generator: Generator
) -> Float[Tensor, "n s s"]:
    """Draw cloud-like maps in 0..1 by the diamond-square algorithm on a torus."""
    side = 1 << (size - 1).bit_length()
    maps = torch.zeros(count, side, side, device=generator.device)

    def moved(neighbours: Tensor) -> Tensor:
        """Return the mean of four neighbours, given their sum, plus noise."""
        draw = torch.rand(neighbours.shape, generator=generator, device=generator.device)
        return neighbours / 4 + amplitude * (2 * draw - 1)

    step, amplitude = side, 1.0
    while step >= 2:
        half, corners = step // 2, maps[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        maps[:, half::step, half::step] = moved(pairs + pairs.roll(-1, 2))
        centres = maps[:, half::step, half::step]
        above_below = centres + centres.roll(1, 1)
        maps[:, ::step, half::step] = moved(above_below + corners + corners.roll(-1, 2))
        left_right = centres + centres.roll(1, 2)
        maps[:, half::step, ::step] = moved(left_right + corners + corners.roll(-1, 1))
        step, amplitude = half, amplitude / decay**2
    maps = maps - maps.amin((1, 2), keepdim=True)
    maps = maps / maps.amax((1, 2), keepdim=True)
    return maps[:, :size, :size]


def fog(images: Images, severity: int, generator: Generator) -> Images:
    """Lay a cloud over each image and darken the whole to its old maximum."""
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    clouds = plasma_fractal(len(images), images.shape[-1], decay, generator).unsqueeze(1)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + amount * clouds) * brightest / (brightest + amount)


def snow(images: Images, severity: int, generator: Generator) -> Images:
    """Whiten the image and let flakes fall: thresholded noise, enlarged and blurred by motion."""
    mean, spread, enlargement, threshold, radius, sigma, opacity = (
        (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    scale, size = length_scale(images), images.shape[-1]
    # Flakes and their paths need 32 pixels: for smaller images the middle of such a layer is used.
    side = max(size, 32)
    shape = (len(images), 1, side, side)
    layer = mean + spread * torch.randn(shape, generator=generator, device=images.device)
    layer = zoom(layer, enlargement * scale)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer).clamp(0, 1)
    draw = torch.rand(len(images), generator=generator, device=images.device)
    layer = motion_filter(layer, radius * scale, sigma * scale, -90 * draw - 45)
    first = (side - size) // 2
    layer = layer[..., first : first + size, first : first + size]
    whitened = torch.maximum(images, to_grey(images) * 1.5 + 0.5)
    snowy = opacity * images + (1 - opacity) * whitened
    return snowy + layer + layer.rot90(2, (2, 3))


def brightness(images: Images, severity: int, _: Generator) -> Images:
    """Add to the value of hue, saturation and value; black becomes grey."""
    added = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    # With hue and saturation kept, all channels are scaled by the same ratio of values.
    value = images.amax(1, keepdim=True)
    raised = (value + added).clamp(max=1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-6)), raised)


def contrast(images: Images, severity: int, _: Generator) -> Images:
    """Shrink the distance of each channel from its mean over the image."""
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    means = images.mean((2, 3), keepdim=True)
    return (images - means) * factor + means


def elastic_transform(images: Images, severity: int, generator: Generator) -> Images:
    """Warp by a random affine map and a smooth field of displacements.

    Deviation from CIFAR-10-C: there, the affine part shrinks from 0.08 to 0.03 of the side as the
    displacements grow, and since it outweighs them, the mildest severity changes the pixels most.
    Here both grow. The two warps are done in one reading of the image, not one after the other.
    """
    size = images.shape[-1]
    height, smoothness, shift = (
        (0.0, 0.0, 0.03),
        (0.05, 0.2, 0.05),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.07),
        (0.1, 0.03, 0.08),
    )[severity - 1]
    rows, columns = pixel_grid(images)
    field_shape = (len(images), 2, size, size)
    field = 2 * torch.rand(field_shape, generator=generator, device=images.device) - 1
    if smoothness:
        sigma = field.new_tensor([smoothness * size])
        field = gaussian_filter(field, sigma, truncate=3.0, padding="reflect")
    field = field * (height * size)
    # An affine map is fixed by what it does to three points, a third of the side off the centre.
    third = float(size // 3)
    corners = images.new_tensor([[third, third, 1.0], [third, -third, 1.0], [-third, -third, 1.0]])
    draw = torch.rand((len(images), 3, 2), generator=generator, device=images.device)
    moved = corners[:, :2] + shift * size * (2 * draw - 1)
    affine = torch.linalg.solve(corners, moved)  # (n, 3, 2): [row, column, 1] @ affine
    points = torch.stack((rows + field[:, 0], columns + field[:, 1]), dim=-1)
    moved_points = points @ affine[:, None, :2] + affine[:, None, None, 2]
    centre = (size - 1) / 2
    return sample_at(
        images, moved_points[..., 0] + centre, moved_points[..., 1] + centre, "reflection"
    )


def pixelate(images: Images, severity: int, generator: Generator) -> Images:
    """Average over blocks a little larger than a pixel.

    Each pixel shows the mean of the block that its centre lies in. The original always starts the
    first block at the corner; here the start is random, another one for each image, since at a
    fixed start the damage on small images jumps up and down with the block's size.
    """
    size = images.shape[-1]
    block = 1 / (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    draw = torch.rand((len(images), 2, 1), generator=generator, device=images.device)
    start = block * draw
    pixels = torch.arange(size, dtype=images.dtype, device=images.device)
    low = torch.floor((pixels + 0.5 - start) / block) * block + start
    high = (low + block).clamp(max=size)[..., None]
    low = low.clamp(min=0)[..., None]
    # average[i, j]: share of pixel j in the block that pixel i lies in.
    overlap = torch.minimum(high, pixels + 1) - torch.maximum(low, pixels)
    average = overlap.clamp(min=0) / (high - low)
    by_row, by_column = average.unsqueeze(1).unbind(2)
    return by_row @ images @ by_column.mT


def jpeg_compression(images: Images, severity: int, _: Generator) -> Images:
    """Store as JPEG and read back, one image after the other on the CPU (extra ``image``)."""
    quality = (80, 65, 58, 50, 40)[severity - 1]
    library = require("PIL.Image", extra="image", distribution="probseq")
    stored: list[np.ndarray] = []
    for image in to_bytes(images).permute(0, 2, 3, 1).cpu().numpy():
        file, grey = io.BytesIO(), image.shape[-1] == 1
        pixels = library.fromarray(image[..., 0] if grey else image)
        pixels.save(file, "JPEG", quality=quality)
        stored.append(np.asarray(library.open(file)).reshape(image.shape))
    return torch.from_numpy(np.stack(stored)).to(images).permute(0, 3, 1, 2) / 255


# Each takes images in 0..1, a severity 1..5 and a generator; what it returns is clipped to 0..1.
CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    made.__name__: made
    for made in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, gaussian_blur, motion_blur, zoom_blur),
        *(fog, snow, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
    )
}

# Images are worked on in chunks of about this many pixels, to bound the memory.
_CHUNK_PIXELS = 1 << 23


def corrupt(
    images: UInt8[Tensor, "n c h w"], name: str, severity: int, *, seed: int
) -> UInt8[Tensor, "n c h w"]:
    """Return corrupted images; the same seed gives the same ones on the same device.

    Images are square, grey or colour, of at least 8x8 pixels; the name is one of ``CORRUPTIONS``,
    the severity from 1 (mild) to 5.

    Example:
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> corrupt(images, "fog", severity=3, seed=0).shape
        torch.Size([2, 3, 32, 32])
    """
    if name not in CORRUPTIONS:
        raise ValueError(f"name must be one of {', '.join(CORRUPTIONS)}, got {name!r}")
    if severity not in range(1, 6):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    height, width = images.shape[-2:]
    if height != width or height < 8:
        raise ValueError(f"images must be square, 8x8 pixels or more, got {height}x{width}")
    generator = Generator(images.device).manual_seed(seed)
    rows = max(1, _CHUNK_PIXELS // images[0].numel()) if len(images) else 1
    chunks = [
        to_bytes(CORRUPTIONS[name](chunk.to(torch.float32) / 255, severity, generator))
        for chunk in images.split(rows)
    ]
    return torch.cat(chunks)
