"""Pseudo videos of images, on the images' device, without a loop over samples or frames.

On a GPU, where values are not looked at: NaN and infinity in a tensor reach the result.
"""

from functools import lru_cache
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.corruptions.blur import blur_matrices, cosine_basis, high_order_multipliers
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.corruptions.noise import noise_coefficients
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
    """Videos whose last frame is the image, bit for bit, and whose first is the most corrupted.

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
        ValueError: images are no floats (b, c, h, w) in −1..1, are too small to be blurred, or
            `index` has another length.
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
        frames = corrupted_signal(exact, config)
        if config.random:
            if index is None:
                index = torch.arange(len(images))
            # The hash is of 64 bits: narrower integers would wrap at their own width.
            index, count = index.to(images.device, torch.int64), frames.shape[1:].numel()
            noise = counter_normal(index, count, seed=seed, epoch=epoch).to(frames.dtype)
            _, mixing = _coefficients(config, frames.device, frames.dtype)
            frames = frames + torch.einsum("ts,bschw->btchw", mixing, noise.view(frames.shape))
        return torch.cat([frames.to(images.dtype), images[:, None]], dim=1)


def corrupted_signal(
    images: Float[Tensor, "b c h w"], config: PseudoVideoConfig
) -> Float[Tensor, "b steps c h w"]:
    """The part of the frames 1..T−1 that is linear in the images: all of a blur, a_t·x of noise.

    Args:
        images: float32 or float64, any values.
        config: the kind of video.

    Raises:
        ValueError: the images are too small to be blurred.
    """
    steps, (height, width) = config.num_frames - 1, images.shape[-2:]
    device, dtype = images.device, images.dtype
    if config.kind == "repeat" or steps == 0:
        return images[:, None].expand(-1, steps, -1, -1, -1)
    rate = cast(float, config.blur_rate)  # a config has a number in the place of None
    if config.kind == "blur":
        rows, columns = (
            _recursive(size, config.num_frames, rate, device, dtype) for size in (height, width)
        )
        return torch.einsum("tih,bchw,tjw->btcij", rows, images, columns)
    if config.kind == "high-order-blur":
        V, V_inv, U, U_inv, multipliers = _spectral(
            height, width, config.num_frames, rate, device, dtype
        )
        spectrum = V_inv @ images @ U_inv.mT
        return V @ (spectrum[:, None] * multipliers[:, None]) @ U.mT
    mean, _ = _coefficients(config, device, dtype)
    return mean[:, None, None, None] * images[:, None]


@lru_cache(maxsize=16)
def _recursive(
    size: int, num_frames: int, rate: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Matrices of all frames but the image, kept on the device."""
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        return blur_matrices(size, num_frames, rate)[:-1].to(device, dtype)


@lru_cache(maxsize=16)
def _spectral(
    height: int,
    width: int,
    num_frames: int,
    rate: float,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Both axes' bases and the multipliers of all frames but the image, kept on the device."""
    with torch.inference_mode(False):
        multipliers = high_order_multipliers(height, width, num_frames, rate)[:-1]
        parts = (*cosine_basis(height), *cosine_basis(width), multipliers)
        return tuple(part.to(device, dtype) for part in parts)


@lru_cache(maxsize=16)
def _coefficients(
    config: PseudoVideoConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Those of the noise of all frames but the image, kept on the device."""
    with torch.inference_mode(False):
        return tuple(part[:-1].to(device, dtype) for part in noise_coefficients(config))


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
