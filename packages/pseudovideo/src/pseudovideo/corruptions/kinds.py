"""The kinds of pseudo videos: a new one is a class, an entry here, and its name in `spec`."""

from functools import lru_cache
from typing import cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pseudovideo.corruptions.blur import blur_matrices, cosine_basis, high_order_multipliers
from pseudovideo.corruptions.noise import noise_coefficients
from pseudovideo.spec import CorruptionKind, PseudoVideoConfig

Images = Float[Tensor, "b c h w"]
Frames = Float[Tensor, "b steps c h w"]
"""The T-1 frames before the image, the most corrupted first."""
Operators = tuple[Float[Tensor, "..."], ...]
"""The tensors that A_t is made of, float64 where they are made; others for each kind."""


class Corruption:
    """A kind of pseudo video: z_t = A_t x + Σ_k L_tk ε_k, for the frames before the image x.

    A_t is linear; ε_k is white noise of the image's shape.
    """

    def operators(self, config: PseudoVideoConfig, height: int, width: int) -> Operators:
        """Return what `signal` is made of; it is kept for images of one size."""
        raise NotImplementedError

    def signal(self, images: Images, operators: Operators) -> Frames:
        """Return A_t x, with operators on the images' device and in their precision."""
        raise NotImplementedError

    def mixing(self, config: PseudoVideoConfig) -> Float64[Tensor, "steps steps"] | None:
        """Return L; None without noise."""
        return None


class Repeat(Corruption):
    """The image again: A_t = I."""

    def operators(self, config: PseudoVideoConfig, height: int, width: int) -> Operators:
        """Return a number for each frame."""
        return (torch.ones(config.num_frames - 1, dtype=torch.float64),)

    def signal(self, images: Images, operators: Operators) -> Frames:
        """Return the images, without a copy."""
        return images[:, None].expand(-1, len(operators[0]), -1, -1, -1)


class Blur(Corruption):
    """The recursive blur of section 5.3.2, see `blur_matrices`."""

    def operators(self, config: PseudoVideoConfig, height: int, width: int) -> Operators:
        """Return R and C, the products of the steps' matrices of rows and columns."""
        frames, rate = config.num_frames, _rate(config)
        return tuple(blur_matrices(size, frames, rate)[:-1] for size in (height, width))

    def signal(self, images: Images, operators: Operators) -> Frames:
        """Return R_t X C_tᵀ."""
        rows, columns = operators
        return torch.einsum("tih,bchw,tjw->btcij", rows, images, columns)


class HighOrderBlur(Corruption):
    """The blur of the mean of all cleaner frames (Table 5.5), see `high_order_multipliers`."""

    def operators(self, config: PseudoVideoConfig, height: int, width: int) -> Operators:
        """Return V, V⁻¹ of the rows, those of the columns, and the multipliers."""
        multipliers = high_order_multipliers(height, width, config.num_frames, _rate(config))
        return (*cosine_basis(height), *cosine_basis(width), multipliers[:-1])

    def signal(self, images: Images, operators: Operators) -> Frames:
        """Return V (Λ_t ∘ V⁻¹ X U⁻ᵀ) Uᵀ."""
        V, V_inv, U, U_inv, multipliers = operators
        spectrum = V_inv @ images @ U_inv.mT
        return V @ (spectrum[:, None] * multipliers[:, None]) @ U.mT


class Noise(Corruption):
    """Frames a_t·x + (L ε)_t, see `noise_coefficients`."""

    def operators(self, config: PseudoVideoConfig, height: int, width: int) -> Operators:
        """Return a."""
        return (noise_coefficients(config)[0][:-1],)

    def signal(self, images: Images, operators: Operators) -> Frames:
        """Return a_t·x."""
        return operators[0][:, None, None, None] * images[:, None]

    def mixing(self, config: PseudoVideoConfig) -> Float64[Tensor, "steps steps"]:
        """Return L."""
        return noise_coefficients(config)[1][:-1]


KINDS: dict[CorruptionKind, Corruption] = {
    "blur": Blur(),
    "high-order-blur": HighOrderBlur(),
    "first-order-noise": Noise(),
    "high-order-noise": Noise(),
    "matched-noise": Noise(),
    "repeat": Repeat(),
}
"""The corruption that each kind of a configuration names."""


@lru_cache(maxsize=32)
def cached_operators(
    config: PseudoVideoConfig, height: int, width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Operators, Tensor | None]:
    """Return operators and L of a config's kind, cached on the device."""
    kind = KINDS[config.kind]
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        operators = kind.operators(config, height, width)
        mixing = kind.mixing(config)
        moved = tuple(operator.to(device, dtype) for operator in operators)
        return moved, None if mixing is None else mixing.to(device, dtype)


def _rate(config: PseudoVideoConfig) -> float:
    return cast(float, config.blur_rate)  # a config has a number in the place of None
