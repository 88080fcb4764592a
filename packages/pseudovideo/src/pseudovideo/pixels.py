"""Images as bytes and in −1..1, the range of the models."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def to_bytes(images: Float[Tensor, "*n c h w"]) -> UInt8[Tensor, "*n c h w"]:
    """Return pixels in −1..1 as bytes on the CPU; the noise of pseudo videos goes beyond."""
    return ((images.float().clamp(-1, 1) + 1.0) * 127.5).round().to(torch.uint8).cpu()


def to_unit(images: UInt8[Tensor, "*n c h w"]) -> Float[Tensor, "*n c h w"]:
    """Return bytes 0..255 as pixels in −1..1."""
    return images.to(torch.float32) / 127.5 - 1
