"""Deterministic image transforms, batched on the images' device."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

# ITU-R BT.601 luma, the weights that Pillow uses for colour to grey.
LUMA = (0.299, 0.587, 0.114)


def normalize(
    images: UInt8[Tensor, "n c h w"],
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n c h w"]:
    """Scale bytes to 0..1, subtract the mean and divide by the standard deviation per channel."""
    shape = (1, -1, 1, 1)
    offset = torch.tensor(mean, dtype=dtype, device=images.device).view(shape)
    scale = torch.tensor(std, dtype=dtype, device=images.device).view(shape)
    return (images.to(dtype) / 255 - offset) / scale


def channel_statistics(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of images scaled to 0..1.

    A channel that is constant gets standard deviation 1, so that it can be divided by.
    """
    # Counting grey levels is exact and needs no float copy of the whole set.
    levels = torch.arange(256, dtype=torch.float64) / 255
    means: list[float] = []
    stds: list[float] = []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten().to(torch.int64), minlength=256).cpu().double()
        share = share / share.sum()
        mean = float(share @ levels)
        std = math.sqrt(float(share @ (levels - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)
    return tuple(means), tuple(stds)


def to_bytes(images: Float[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """Turn images in 0..1 into bytes, clipped and rounded to the nearest level."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def to_grey(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 1 h w"]:
    """Luma of colour images; grey images stay as they are."""
    if images.shape[1] == 1:
        return images
    weights = images.new_tensor(LUMA).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def sample_at(
    images: Float[Tensor, "n c h w"],
    rows: Float[Tensor, "n h2 w2"],
    columns: Float[Tensor, "n h2 w2"],
    padding: str = "zeros",
) -> Float[Tensor, "n c h2 w2"]:
    """Read images at fractional pixel coordinates by bilinear interpolation.

    Args:
        images: images.
        rows: row coordinate of each output pixel; 0 is the centre of the first row.
        columns: column coordinate likewise.
        padding: what lies outside: ``"zeros"``, ``"border"`` or ``"reflection"``.
    """
    height, width = images.shape[-2:]
    grid = torch.stack((columns * (2 / (width - 1)) - 1, rows * (2 / (height - 1)) - 1), dim=-1)
    return functional.grid_sample(images, grid, padding_mode=padding, align_corners=True)


def pixel_grid(
    images: Float[Tensor, "n c h w"],
) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h w"]]:
    """Row and column coordinate of every pixel, measured from the centre of the image."""
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    columns = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    return rows[:, None].expand(height, width), columns[None, :].expand(height, width)


def rotate(images: UInt8[Tensor, "n c h w"], degrees: int | float) -> UInt8[Tensor, "n c h w"]:
    """Rotate images counter-clockwise about their centre; what comes in from outside is black."""
    height, width = images.shape[-2:]
    floats = images.to(torch.float32) / 255
    rows, columns = pixel_grid(floats)
    angle = math.radians(degrees)
    # Each output pixel is read where it came from: its position turned back. Rows grow downwards.
    from_columns = math.cos(angle) * columns - math.sin(angle) * rows + (width - 1) / 2
    from_rows = math.sin(angle) * columns + math.cos(angle) * rows + (height - 1) / 2
    size = (len(images), height, width)
    return to_bytes(sample_at(floats, from_rows.expand(size), from_columns.expand(size)))


def match_images(
    images: UInt8[Tensor, "n c h w"], *, channels: int, image_size: int
) -> UInt8[Tensor, "n c2 h2 w2"]:
    """Give images the channels and the size that a model expects.

    Grey becomes colour by repeating the channel, colour becomes grey by luma; other sizes are
    resized bilinearly, with antialiasing when they shrink.
    """
    if images.shape[1] == channels and images.shape[-2:] == (image_size, image_size):
        return images
    # Chunks: the float copy of a whole test set of large images need not fit.
    return torch.cat([_match_chunk(chunk, channels, image_size) for chunk in images.split(1000)])


def _match_chunk(images: Tensor, channels: int, image_size: int) -> Tensor:
    floats = images.to(torch.float32) / 255
    if channels == 1:
        floats = to_grey(floats)
    if floats.shape[-2:] != (image_size, image_size):
        floats = functional.interpolate(
            floats, size=(image_size, image_size), mode="bilinear", antialias=True
        )
    return to_bytes(floats.expand(-1, channels, -1, -1))
