"""Small images side by side, as the pixels of one picture."""

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

# White between two images, in pixels as they are drawn.
GAP = 2
# Small images are drawn larger, at least this many pixels wide; more beside labels.
LEAST_CELL, LEAST_LABELLED = 64, 96


def check_images(name: str, values: Tensor, dimensions: int) -> None:
    """Refuse what are no images.

    Args:
        name: of the argument.
        values: its value.
        dimensions: how many it must have.

    Raises:
        ValueError: another number of dimensions, an empty one, or neither grey nor colour.
    """
    if values.ndim != dimensions or 0 in values.shape or values.shape[-3] not in (1, 3):
        raise ValueError(
            f"{name} must have {dimensions} dimensions, none empty, and 1 or 3 channels, got "
            f"shape {tuple(values.shape)}"
        )


def side(count: int) -> int:
    """Images in a row of a grid that has as many rows."""
    return int(np.ceil(np.sqrt(count)))


def tiles(images: Tensor, columns: int, least: int = LEAST_CELL) -> UInt8[np.ndarray, "y x 3"]:
    """Images in rows on white, small ones enlarged by a whole factor.

    Args:
        images: (n, c, h, w) in -1..1; values beyond are clamped.
        columns: images in a row.
        least: pixels that an image is wide at least.
    """
    values = images.detach().float().clamp(-1, 1).add(1).mul(127.5).round().byte().cpu()
    pixels = values.expand(-1, 3, -1, -1).movedim(1, -1).numpy()
    factor = max(1, -(-least // pixels.shape[2]))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    count, height, width, _ = pixels.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for place, image in enumerate(pixels):
        row, column = divmod(place, columns)
        top, left = row * (height + GAP), column * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas
