"""Random augmentation of training images, a whole batch at once on its device."""

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional

from probseq_apps.data.filters import gaussian_filter
from probseq_apps.data.transforms import to_bytes, to_grey

_JITTER = 0.3
_BLUR_SIGMAS = (0.1, 2.0)


def random_crop_flip(
    images: UInt8[Tensor, "n c h w"],
    generator: torch.Generator,
    *,
    padding: int = 4,
    padding_mode: str = "constant",
) -> UInt8[Tensor, "n c h w"]:
    """Shift each image by up to ``padding`` pixels each way, and mirror every second one or so.

    Args:
        images: images.
        generator: source of randomness on the images' device.
        padding: largest shift.
        padding_mode: what comes in from outside: ``"constant"`` (black) or ``"reflect"``.
    """
    count, channels, height, width = images.shape
    # Reflection isn't there for bytes; all bytes are exact in float32.
    padded = functional.pad(images.to(torch.float32), (padding,) * 4, mode=padding_mode)
    device = images.device
    offsets = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = offsets[1] + torch.arange(width, device=device)
    mirrored = torch.rand((count, 1), generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    cut = padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
    return cut.to(torch.uint8)


def augment3(
    images: UInt8[Tensor, "n c h w"], generator: torch.Generator
) -> UInt8[Tensor, "n c h w"]:
    """3-Augment with a simple random crop (Touvron, Cord and Jégou 2022, "DeiT III").

    Crop after reflecting 4 pixels beyond the border and mirror by chance; then one of three, with
    equal chances: grey, solarization (invert what is brighter than half), or Gaussian blur with
    sigma in 0.1..2; then jitter of brightness, contrast and saturation by factors in 0.7..1.3.

    The order of the three jitters is fixed here and random in torchvision. On grey images the
    change to grey and the jitter of saturation do nothing.

    Args:
        images: training images.
        generator: source of randomness on the images' device.
    """
    count = len(images)
    cropped = random_crop_flip(images, generator, padding=4, padding_mode="reflect")
    floats = cropped.to(torch.float32) / 255

    def drawn(low: float, high: float) -> Tensor:
        draw = torch.rand(count, generator=generator, device=images.device)
        return (low + (high - low) * draw).view(-1, 1, 1, 1)

    choice = torch.randint(3, (count, 1, 1, 1), generator=generator, device=images.device)
    grey = to_grey(floats).expand_as(floats)
    solarized = torch.where(floats >= 128 / 255, 1 - floats, floats)
    blurred = gaussian_filter(floats, drawn(*_BLUR_SIGMAS).flatten(), truncate=3.0)
    floats = torch.where(choice == 0, grey, torch.where(choice == 1, solarized, blurred))

    low, high = 1 - _JITTER, 1 + _JITTER
    floats = (floats * drawn(low, high)).clamp(0, 1)
    means = to_grey(floats).mean((1, 2, 3), keepdim=True)
    floats = (means + drawn(low, high) * (floats - means)).clamp(0, 1)
    luma = to_grey(floats)
    return to_bytes(luma + drawn(low, high) * (floats - luma))
