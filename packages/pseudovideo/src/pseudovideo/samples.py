"""Samples as bytes, drawn batch by batch."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from pseudovideo.diffusion.base import FrameDiffusion
from pseudovideo.hvae import HVAE
from pseudovideo.pixels import to_bytes
from pseudovideo.priors.base import TokenPrior


def draw_samples(
    model: FrameDiffusion | HVAE | TokenPrior,
    num: int,
    *,
    labels: Int64[Tensor, " n"] | None = None,
    keep: int = 64,
    batch_size: int = 250,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> tuple[UInt8[Tensor, "n c h w"], UInt8[Tensor, "m t c h w"]]:
    """Return the last frames of all samples, and the first samples with all their frames.

    So many as `keep` says are kept whole. Other arguments are those of the model's `sample`.
    """
    images: list[Tensor] = []
    videos: list[Tensor] = []
    for first in range(0, num, batch_size):
        count = min(batch_size, num - first)
        if labels is not None:
            options["labels"] = labels[first : first + count]
        samples = model.sample(count, batch_size=count, **options)
        frames = to_bytes(samples if samples.ndim == 5 else samples[:, None])
        images.append(frames[:, -1])
        videos.append(frames[: max(0, keep - first)])
        if progress is not None:
            progress(count)
    return torch.cat(images), torch.cat(videos)
