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

For numbers that compare with published ones, read the published files: ``read_cifar_c``.
"""

from collections.abc import Callable

import torch
from jaxtyping import UInt8
from torch import Tensor

from probseq_apps.data.corruptions import blur, digital, noise, weather
from probseq_apps.data.corruptions.cifar_c import available_cifar_c, read_cifar_c
from probseq_apps.data.errors import DataError
from probseq_apps.data.names import CORRUPTION_GROUPS, CORRUPTION_NAMES, unknown_name_message
from probseq_apps.data.transforms import to_bytes

__all__ = [
    "CORRUPTION_GROUPS",
    "CORRUPTION_NAMES",
    "available_cifar_c",
    "corrupt",
    "read_cifar_c",
]

# Each takes images in 0..1, a severity 1..5 and a generator; what it returns is clipped to 0..1.
_CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "gaussian_blur": blur.gaussian_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "fog": weather.fog,
    "snow": weather.snow,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}

# Images are worked on in chunks of about this many pixels, to bound the memory.
_CHUNK_PIXELS = 1 << 23


def corrupt(
    images: UInt8[Tensor, "n c h w"], name: str, severity: int, *, seed: int
) -> UInt8[Tensor, "n c h w"]:
    """Corrupt images.

    Args:
        images: square grey or colour images of at least 8x8 pixels, on any device.
        name: one of ``CORRUPTION_NAMES``.
        severity: 1 (mild) to 5 (severe).
        seed: the same seed gives the same images on the same device.

    Returns:
        Corrupted images on the same device.

    Raises:
        DataError: unknown name or severity, or images that are too small or not square.
    """
    if name not in _CORRUPTIONS:
        raise DataError(unknown_name_message("corruption", name, CORRUPTION_NAMES))
    if severity not in range(1, 6):
        raise DataError(f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    height, width = images.shape[-2:]
    if height != width or height < 8:
        raise DataError(
            f"images to corrupt must be square, 8x8 pixels or more, got {height}x{width}"
        )
    generator = torch.Generator(images.device).manual_seed(seed)
    rows = max(1, _CHUNK_PIXELS // images[0].numel()) if len(images) else 1
    chunks = [
        to_bytes(_CORRUPTIONS[name](chunk.to(torch.float32) / 255, severity, generator))
        for chunk in images.split(rows)
    ]
    return torch.cat(chunks)
