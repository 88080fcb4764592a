"""Pseudo videos of images, on the images' device, without a loop over samples or frames.

On a GPU, where values are not looked at: NaN and infinity in a tensor reach the result.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.corruptions.kinds import KINDS, cached_operators
from pseudovideo.pixels import OF_IMAGES, check_pixels
from pseudovideo.spec import PseudoVideoConfig


def pseudo_videos(
    images: Float[Tensor, "b c h w"],
    config: PseudoVideoConfig,
    *,
    seed: int = 0,
    epoch: int = 0,
    index: Int64[Tensor, " b"] | None = None,
) -> Float[Tensor, "b T c h w"]:
    """Return videos whose last frame is the image, bit for bit, and first the most corrupted.

    Args:
        images: in −1..1.
        config: the kind of video.
        seed: of the noise, any integer; nothing else than noise is random.
        epoch: pass over the data: noise is new in each.
        index: numbers of the images in their data set, so that noise doesn't depend on the batch
            they come in; 0..b−1 by default.

    Returns:
        Videos in the images' dtype. Noise carries values outside −1..1.
    """
    _check_images(images)
    if index is not None and (index.is_floating_point() or index.dtype == torch.bool):
        raise ValueError(f"index must hold integers, got {index.dtype}")
    if index is not None and index.shape != images.shape[:1]:
        raise ValueError(
            f"index must have a number for each of {len(images)} images, got shape "
            f"{tuple(index.shape)}"
        )
    # Under autocast the products would be made in half precision.
    with torch.autocast(images.device.type, enabled=False):
        exact = images.float() if images.dtype in (torch.float16, torch.bfloat16) else images
        if config.num_frames == 1:
            return images[:, None]
        size = exact.shape[2:]
        operators, mixing = cached_operators(config, *size, exact.device, exact.dtype)
        frames = KINDS[config.kind].signal(exact, operators)  # A_t x
        if mixing is not None:
            if index is None:
                index = torch.arange(len(images))
            # The hash is of 64 bits: narrower integers would wrap at their own width.
            index = index.to(images.device, torch.int64)
            count = frames.shape[1:].numel()
            noise = counter_normal(index, count, seed=seed, epoch=epoch).to(exact.dtype)
            # + Σ_s L_ts ε_s
            frames = frames + torch.einsum("ts,bschw->btchw", mixing, noise.view(frames.shape))
        return torch.cat([frames.to(images.dtype), images[:, None]], dim=1)


def _check_images(images: Tensor) -> None:
    if not images.is_floating_point():
        raise ValueError(f"images must be floats in -1..1, got {images.dtype}")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"images must have shape (b, c, h, w), got {tuple(images.shape)}")
    check_pixels(OF_IMAGES, images=images)
