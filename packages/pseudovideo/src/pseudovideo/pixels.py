"""Images as bytes and in −1..1, the range of the models."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

OF_IMAGES = 1.001  # resized images go beyond ±1 by round-off
OF_NOISE = 10.0  # noise of pseudo videos goes beyond ±1, and not so far


def check_values(name: str, images: Tensor, most: float = OF_NOISE) -> None:
    """Refuse what is no image in −1..1: NaN, infinity, and values above `most`; reads them all."""
    low, high = torch.stack(images.detach().aminmax()).tolist()
    # Written so that NaN, for which every comparison is false, is refused too.
    if not (low >= -most and high <= most):
        noise = " but for noise" if most == OF_NOISE else ""
        raise ValueError(
            f"{name} must be finite, with values in -1..1{noise}, got {low:.4g} to {high:.4g}: "
            "scale levels of 0..255 by x / 127.5 - 1"
        )


def check_pixels(most: float = OF_NOISE, **images: Tensor) -> None:
    """Check values on the CPU only, where the look costs no synchronisation in training."""
    for name, tensor in images.items():
        if tensor.device.type == "cpu" and not torch.compiler.is_compiling() and tensor.numel():
            check_values(name, tensor, most)


def check_batch(name: str, images: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a batch that is empty, no floats, of another shape, or not in −1..1 but for noise."""
    if images.shape[1:] != shape or not len(images) or not images.is_floating_point():
        raise ValueError(
            f"{name} must be floats of shape (batch, {', '.join(map(str, shape))}), got "
            f"{images.dtype} of shape {tuple(images.shape)}"
        )
    check_pixels(**{name: images})


def to_bytes(images: Float[Tensor, "*n c h w"]) -> UInt8[Tensor, "*n c h w"]:
    """Return pixels in −1..1 as bytes on the CPU; the noise of pseudo videos goes beyond."""
    if images.isnan().any():  # which would be black
        raise ValueError("images must be numbers to be bytes, got NaN")
    return ((images.float().clamp(-1, 1) + 1.0) * 127.5).round().to(torch.uint8).cpu()


def to_unit(images: UInt8[Tensor, "*n c h w"]) -> Float[Tensor, "*n c h w"]:
    """Return bytes 0..255 as pixels in −1..1."""
    return images.to(torch.float32) / 127.5 - 1
