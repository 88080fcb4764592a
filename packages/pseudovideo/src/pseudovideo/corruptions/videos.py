"""Pseudo videos of images, on the images' device, without a loop over samples or frames.

On a GPU, where values are not looked at: NaN and infinity in a tensor reach the result.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.corruptions.base import ImageShape
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.corruptions.kinds import KINDS, cached_operators
from pseudovideo.spec import PseudoVideoConfig

# Resized images go beyond −1 and 1 by round-off.
_TOLERANCE = 1e-3


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

    Raises:
        ValueError: images are no floats (b, c, h, w) in −1..1, have no videos of this kind at
            their size, or `index` has another length.
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
        hidden = noise = mixing = None
        if config.random:
            if index is None:
                index = torch.arange(len(images))
            _, mixing = cached_operators(config, _shape(exact), exact.device, exact.dtype)
            steps, drawn = (
                config.num_frames - 1,
                KINDS[config.kind].num_hidden(config, _shape(exact)),
            )
            count = drawn + (0 if mixing is None else steps * exact.shape[1:].numel())
            # The hash is of 64 bits: narrower integers would wrap at their own width.
            index = index.to(images.device, torch.int64)
            normals = counter_normal(index, count, seed=seed, epoch=epoch).to(exact.dtype)
            hidden, noise = normals[:, :drawn], normals[:, drawn:]
        frames = corrupted_signal(exact, config, hidden=hidden)
        if mixing is not None and noise is not None:
            frames = frames + torch.einsum("ts,bschw->btchw", mixing, noise.view(frames.shape))
        return torch.cat([frames.to(images.dtype), images[:, None]], dim=1)


def corrupted_signal(
    images: Float[Tensor, "b c h w"],
    config: PseudoVideoConfig,
    *,
    hidden: Float[Tensor, "b draws"] | None = None,
) -> Float[Tensor, "b steps c h w"]:
    """Return the part of the frames 1..T−1 that is linear in the images, A_t x.

    The A_t of each image depend on standard normal numbers, `hidden`, for `patch-mask`.

    Raises:
        ValueError: there are no such videos of images of this shape, or `hidden` is missing.
    """
    if config.num_frames == 1:
        return images[:, None].expand(-1, 0, -1, -1, -1)
    operators, _ = cached_operators(config, _shape(images), images.device, images.dtype)
    return KINDS[config.kind].signal(images, operators, hidden)


def _shape(images: Tensor) -> ImageShape:
    return ImageShape(*images.shape[1:])


def _check_images(images: Tensor) -> None:
    if not images.is_floating_point():
        raise ValueError(f"images must be floats in -1..1, got {images.dtype}")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"images must have shape (b, c, h, w), got {tuple(images.shape)}")
    # On the CPU only, where the look costs no synchronisation: this runs in each training step.
    if images.device.type == "cpu" and images.numel():
        low, high = torch.stack(torch.aminmax(images)).tolist()
        # NaN fails too.
        if not (low >= -1 - _TOLERANCE and high <= 1 + _TOLERANCE):
            raise ValueError(
                f"images must have values in -1..1, got {low:.4g} to {high:.4g}: "
                "bytes are to be divided by 127.5, less 1"
            )
