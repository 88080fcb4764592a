"""Checks of image tensors that the networks behind the metrics share."""

from torch import Tensor

from probseq.checks import as_finite

# What rounding to 16 bits or an interpolation may add.
_TOLERANCE = 1e-2


def check_images(name: str, images: Tensor) -> Tensor:
    """Return images (n, c, h, w) as floats; refuse other shapes, channels and ranges by name."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"{name} must have shape (n, c, h, w) with 1 or 3 channels, got {tuple(images.shape)}"
        )
    images = as_finite(name, images)
    lowest, highest = (float(end) for end in images.detach().aminmax())
    if lowest < -1.0 - _TOLERANCE or highest > 1.0 + _TOLERANCE:
        raise ValueError(
            f"{name} must lie in -1..1, got values from {lowest:g} to {highest:g}: "
            "scale levels of 0..255 by x / 127.5 - 1, clamp reconstructions"
        )
    return images


def as_colour(images: Tensor) -> Tensor:
    """Repeat a grey channel three times; colour stays."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
