"""Image transforms, filters and random augmentation, a whole batch at once on its device."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

# ITU-R BT.601 luma, the weights that Pillow uses for colour to grey.
LUMA = (0.299, 0.587, 0.114)


def normalize(
    images: UInt8[Tensor, "n c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "n c h w"]:
    """Scale bytes to 0..1, subtract the mean and divide by the standard deviation per channel."""
    shape = (1, -1, 1, 1)
    offset, scale = (
        torch.tensor(values, dtype=torch.float32, device=images.device).view(shape)
        for values in (mean, std)
    )
    return (images.float() / 255 - offset) / scale


def channel_statistics(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of images scaled to 0..1.

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
    """Return the luma of colour images; grey images stay as they are."""
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
    """Read images at fractional pixel coordinates, 0 the first row's or column's centre (bilinear).

    Values outside the image are ``"zeros"``, ``"border"`` or ``"reflection"``.
    """
    height, width = images.shape[-2:]
    grid = torch.stack((columns * (2 / (width - 1)) - 1, rows * (2 / (height - 1)) - 1), dim=-1)
    return functional.grid_sample(images, grid, padding_mode=padding, align_corners=True)


def pixel_grid(
    images: Float[Tensor, "n c h w"],
) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h w"]]:
    """Return row and column coordinate of every pixel, from the centre of the image."""
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


def gaussian_filter(
    images: Float[Tensor, "n c h w"],
    sigma: Float[Tensor, " m"],
    *,
    truncate: float = 4.0,
    padding: str = "replicate",
) -> Float[Tensor, "n c h w"]:
    """Blur with a Gaussian of deviation ``sigma`` in pixels, one for each image or a single one.

    The kernel ends at ``truncate`` of the largest deviations; values beyond the border are
    ``"replicate"`` or ``"reflect"``.
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
    """Return the weighted sum of shifted images; each image may have a kernel of its own."""
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
    """Return the ratio of a length in pixels to the one for 32x32 images.

    It grows with the size, and is 1 below 32 pixels too: half a pixel of blur can't be halved.
    """
    return max(1.0, images.shape[-1] / 32)


_JITTER = 0.3
_BLUR_SIGMAS = (0.1, 2.0)


def random_crop_flip(
    images: UInt8[Tensor, "n c h w"],
    generator: torch.Generator,
    *,
    padding: int = 4,
    padding_mode: str = "constant",
) -> UInt8[Tensor, "n c h w"]:
    """Shift each image by up to ``padding`` pixels each way, and mirror every second one or so."""
    count, channels, height, width = images.shape
    # Reflection isn't there for bytes; all bytes are exact in float32.
    padded = functional.pad(images.to(torch.float32), (padding,) * 4, mode=padding_mode)
    device = images.device
    offsets = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = offsets[1] + torch.arange(width, device=device)
    mirrored = torch.rand((count, 1), generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    cut = padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
    return cut.to(torch.uint8)


def augment3(
    images: UInt8[Tensor, "n c h w"], generator: torch.Generator
) -> UInt8[Tensor, "n c h w"]:
    """Apply 3-Augment with a simple random crop (Touvron, Cord and Jégou 2022, "DeiT III").

    Crop after reflecting 4 pixels beyond the border and mirror by chance; then one of three, with
    equal chances: grey, solarization (invert what is brighter than half), or Gaussian blur with
    sigma in 0.1..2; then jitter of brightness, contrast and saturation by factors in 0.7..1.3.

    The order of the three jitters is fixed here and random in torchvision. On grey images the
    change to grey and the jitter of saturation do nothing.
    """
    count = len(images)
    cropped = random_crop_flip(images, generator, padding=4, padding_mode="reflect")
    floats = cropped.to(torch.float32) / 255

    def uniform(low: float, high: float) -> Tensor:
        draw = torch.rand(count, generator=generator, device=images.device)
        return (low + (high - low) * draw).view(-1, 1, 1, 1)

    choice = torch.randint(3, (count, 1, 1, 1), generator=generator, device=images.device)
    grey = to_grey(floats).expand_as(floats)
    solarized = torch.where(floats >= 128 / 255, 1 - floats, floats)
    blurred = gaussian_filter(floats, uniform(*_BLUR_SIGMAS).flatten(), truncate=3.0)
    floats = torch.where(choice == 0, grey, torch.where(choice == 1, solarized, blurred))

    low, high = 1 - _JITTER, 1 + _JITTER
    floats = (floats * uniform(low, high)).clamp(0, 1)
    means = to_grey(floats).mean((1, 2, 3), keepdim=True)
    floats = (means + uniform(low, high) * (floats - means)).clamp(0, 1)
    luma = to_grey(floats)
    return to_bytes(luma + uniform(low, high) * (floats - luma))
