"""From raw arrays of any common layout to checked tensors."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from probseq_apps.data.errors import DataError


def image_tensor(array: NDArray[np.generic], source: Path) -> UInt8[Tensor, "n c h w"]:
    """Check images and bring them to bytes (N, C, H, W).

    Args:
        array: (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels: integers in 0..255, or
            floating-point numbers in 0..1.
        source: file, named in the messages.

    Raises:
        DataError: other shape or type, values out of range, NaN or infinity, or no rows.
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"{source}: images must have shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 "
            f"channels and at least one row, got {array.shape}"
        )
    if array.dtype != np.uint8:
        array = _to_bytes(array, source)
    return torch.from_numpy(np.array(array, dtype=np.uint8, order="C"))


def label_tensor(array: NDArray[np.generic], rows: int, source: Path) -> Int64[Tensor, " n"]:
    """Check labels and bring them to int64 (N,).

    Raises:
        DataError: not integers, NaN, or another number of labels than of images.
    """
    labels = array.reshape(-1) if array.shape == (rows, 1) else array
    if labels.shape != (rows,):
        raise DataError(f"{source}: {rows} rows need labels of shape ({rows},), got {array.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{source}: labels must be integers, got {labels.dtype}")
    return torch.from_numpy(labels.astype(np.int64))


def _to_bytes(array: NDArray[np.generic], source: Path) -> NDArray[np.uint8]:
    if np.issubdtype(array.dtype, np.integer):
        low, high, scale = 0, 255, 1
    elif np.issubdtype(array.dtype, np.floating):
        low, high, scale = 0, 1, 255
        broken = ~np.isfinite(array.astype(np.float64)).all(axis=(1, 2, 3))
        if broken.any():
            raise DataError(
                f"{source}: image {int(broken.argmax())} holds NaN or infinity "
                f"({int(broken.sum())} such images)"
            )
    else:
        raise DataError(f"{source}: images must be numbers, got {array.dtype}")
    numbers = array.astype(np.float64)
    if numbers.min() < low or numbers.max() > high:
        raise DataError(
            f"{source}: images of type {array.dtype} must lie in {low}..{high}, "
            f"got {numbers.min():g}..{numbers.max():g}"
        )
    return np.rint(numbers * scale).astype(np.uint8)
