"""Corruptions that are a matrix for each axis: frame_t = R_t X C_tᵀ."""

import math
from typing import cast

import torch
from jaxtyping import Float64
from torch import Tensor

from pseudovideo.corruptions.base import Corruption, Frames, Hidden, Images, ImageShape, Operators
from pseudovideo.corruptions.blur import blur_matrices, cosine_basis, high_order_multipliers
from pseudovideo.spec import PseudoVideoConfig


class Separable(Corruption):
    """Frames R_t X C_tᵀ, whose matrices depend on the length of their axis alone."""

    def matrices(self, size: int, config: PseudoVideoConfig) -> Float64[Tensor, "steps size size"]:
        """Return the matrices of an axis.

        Raises:
            ValueError: an axis of this size has none.
        """
        raise NotImplementedError

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return R and C."""
        return tuple(self.matrices(size, config) for size in (shape.height, shape.width))

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return R_t X C_tᵀ."""
        rows, columns = operators
        return torch.einsum("tih,bchw,tjw->btcij", rows, images, columns)


class Blur(Separable):
    """The recursive blur of section 5.3.2, see `blur_matrices`."""

    def matrices(self, size: int, config: PseudoVideoConfig) -> Float64[Tensor, "steps size size"]:
        """Return the products of the steps' matrices."""
        return blur_matrices(size, config.num_frames, _rate(config))[:-1]


class HighOrderBlur(Corruption):
    """The blur of the mean of all cleaner frames (Table 5.5), see `high_order_multipliers`."""

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return V, V⁻¹ of the rows, those of the columns, and the multipliers."""
        height, width = shape.height, shape.width
        multipliers = high_order_multipliers(height, width, config.num_frames, _rate(config))
        return (*cosine_basis(height), *cosine_basis(width), multipliers[:-1])

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return V (Λ_t ∘ V⁻¹ X U⁻ᵀ) Uᵀ."""
        V, V_inv, U, U_inv, multipliers = operators
        spectrum = V_inv @ images @ U_inv.mT
        return V @ (spectrum[:, None] * multipliers[:, None]) @ U.mT


class Pyramid(Separable):
    """Means of blocks: frame T−k shows every block of 2^k × 2^k pixels by its mean.

    R_{T−k} is the projection on what is constant in blocks, so that frames are nested: each
    follows from the next one.
    """

    def matrices(self, size: int, config: PseudoVideoConfig) -> Float64[Tensor, "steps size size"]:
        """Return the projections; refuse sizes that can't be halved T−1 times."""
        halvings = config.num_frames - 1
        if size % 2**halvings:
            most = (size & -size).bit_length()
            raise ValueError(
                f"images must halve {halvings} times on each side for config.kind=pyramid and "
                f"num_frames={config.num_frames}, got {size} pixels, which allow at most "
                f"num_frames={most}"
            )
        places = torch.arange(size)
        blocks = [places // 2**k for k in range(halvings, 0, -1)]
        return torch.stack(
            [(b[:, None] == b).double() / (b == 0).sum() for b in blocks]
            or [torch.eye(size, dtype=torch.float64)]
        )[:halvings]


class LowPass(Separable):
    """The lowest frequencies: frame t keeps the first ⌈N·t/T⌉ of the N cosines of an axis.

    R_t = V Vᵀ with those columns of the orthonormal DCT of type II: a projection, nested too.
    """

    def matrices(self, size: int, config: PseudoVideoConfig) -> Float64[Tensor, "steps size size"]:
        """Return the projections; refuse fewer frequencies than frames."""
        if size < config.num_frames:
            raise ValueError(
                f"images must have at least num_frames={config.num_frames} pixels on each side for "
                f"config.kind=low-pass, a frequency more in each frame, got {size}"
            )
        V = _cosines(size)
        counts = [-(-size * t // config.num_frames) for t in range(1, config.num_frames)]
        return torch.stack([V[:, :count] @ V[:, :count].mT for count in counts] or [V])[
            : len(counts)
        ]


def _cosines(size: int) -> Tensor:
    """Return V of the orthonormal DCT-II: V[n, k] = √((2−[k=0])/N) cos(πk(n+½)/N)."""
    places = torch.arange(size, dtype=torch.float64)
    basis = (math.pi / size * (places[:, None] + 0.5) * places).cos() * math.sqrt(2 / size)
    basis[:, 0] = math.sqrt(1 / size)
    return basis


def _rate(config: PseudoVideoConfig) -> float:
    return cast(float, config.blur_rate)  # a config has a number in the place of None
