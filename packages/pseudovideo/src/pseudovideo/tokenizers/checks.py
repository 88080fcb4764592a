"""What a tokenizer refuses, and in which words."""

import torch
from torch import Tensor

from pseudovideo.grid import TokenGrid
from pseudovideo.tokenizers.config import TokenizerConfig

_ROUNDING = 1e-3
_NOISE = 8.0


def check_shape(videos: Tensor, config: TokenizerConfig) -> None:
    """Refuse videos of another kind than a tokenizer was built for; costs no device sync.

    Args:
        videos: what should be floating-point (b, T, c, h, w).
        config: of the tokenizer.

    Raises:
        ValueError: says which of the dimensions is wrong, and how.
    """
    size = config.image_size
    expected = (config.num_frames, config.channels, size, size)
    if videos.ndim != 5:
        raise ValueError(
            "videos must have 5 dimensions (batch, frames, channels, height, width), got shape "
            f"{tuple(videos.shape)}; images are videos of one frame: images[:, None]"
        )
    if not len(videos):
        raise ValueError(f"videos must not be empty, got shape {tuple(videos.shape)}")
    frames, channels, *sides = videos.shape[1:]
    if channels != config.channels:
        kinds = {1: "grey images", 3: "colour images"}
        raise ValueError(
            f"videos must have channels={config.channels}"
            f"{_in_words(kinds.get(config.channels))}, got {channels}"
            f"{_in_words(kinds.get(channels))}"
        )
    if tuple(videos.shape[1:]) != expected:
        raise ValueError(
            "videos must have (frames, channels, height, width)="
            f"{expected}, got {(frames, channels, *sides)}"
        )
    if not videos.is_floating_point():
        raise ValueError(
            f"videos must be floating point with values in -1..1, got {videos.dtype}: "
            "turn pixels 0..255 into pixels / 127.5 - 1"
        )


def _in_words(kind: str | None) -> str:
    return f" ({kind})" if kind else ""


def check_range(videos: Tensor) -> None:
    """Refuse values that are no pixels; waits for the device once.

    The last frame, the image, must lie in −1..1. The frames before it may leave that range, since
    noise does, but not as far as pixels 0..255 would.

    Args:
        videos: (b, T, c, h, w), not empty.

    Raises:
        ValueError: what the range is.
    """
    if not videos.numel():
        raise ValueError(f"videos must not be empty, got shape {tuple(videos.shape)}")
    low, high, image_low, image_high = torch.stack(
        [*videos.aminmax(), *videos[:, -1].aminmax()]
    ).tolist()
    edge = 1.0 + _ROUNDING
    # Written so that NaN, for which every comparison is false, is refused too.
    if not (-edge <= image_low and image_high <= edge):
        raise ValueError(
            "videos must have values in -1..1 in their last frame, the image, "
            f"got {image_low:.4g}..{image_high:.4g}"
        )
    if not (low >= -_NOISE and high <= _NOISE):
        raise ValueError(
            f"videos must have values in -1..1 (noise may leave it, up to {_NOISE:.0f}), "
            f"got {low:.4g}..{high:.4g}"
        )


def check_indices(indices: Tensor, grid: TokenGrid) -> None:
    """Refuse tokens of another grid or codebook; waits for the device once.

    Args:
        indices: what should be int64 (b, t, h, w).
        grid: of the tokenizer.

    Raises:
        ValueError: the shape, type or values are wrong.
    """
    if indices.ndim != 4 or tuple(indices.shape[1:]) != grid.shape:
        raise ValueError(
            f"indices must have shape (batch, time, height, width)=(b, {grid.shape[0]}, "
            f"{grid.shape[1]}, {grid.shape[2]}), got {tuple(indices.shape)}"
        )
    if indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64, got {indices.dtype}")
    if not indices.numel():
        raise ValueError(f"indices must not be empty, got shape {tuple(indices.shape)}")
    low, high = torch.stack(indices.aminmax()).tolist()
    if low < 0 or high >= grid.codebook_size:
        raise ValueError(
            f"indices must be in 0..{grid.codebook_size - 1} (codebook_size="
            f"{grid.codebook_size}), got {low}..{high}"
        )
