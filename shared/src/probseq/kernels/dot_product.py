"""Kernels of dot products: they depend on where the points are, not only on their differences.

NaN and infinity in a tensor reach the result.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import broadcastable, check_real
from probseq.kernels.base import ARDKernel, Spectrum, check_arguments

__all__ = ["Exponential", "Linear", "cosine_features", "exponential"]


def exponential(
    x: Float[Tensor, "*#b n d"],
    z: Float[Tensor, "*#b m d"],
    lengthscale: Float[Tensor, "*#b 1 d"],
    outputscale: Float[Tensor, "*#b"],
) -> Float[Tensor, "*#b n m"]:
    """Return the exponential dot-product kernel σ_f² exp(Σ_j x_j z_j/σ_j²).

    There is no factor ½ and no 1/√d: with σ_j² = √d it is the numerator of softmax attention.

    Args:
        x: inputs, the rows.
        z: inputs, the columns.
        lengthscale: σ_j.
        outputscale: σ_f².

    Returns:
        The covariance matrix; entries overflow once the exponent passes 88 in float32.

    Raises:
        ValueError: see :func:`~probseq.kernels.base.check_arguments`.
    """
    check_arguments(x, z, lengthscale, outputscale)
    return _exponential(x, z, lengthscale, outputscale)


def _exponential(x: Tensor, z: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    # σ_f² goes into the exponent: one pass over the matrix less, and a small one delays overflow.
    exponent = (x / lengthscale) @ (z / lengthscale).mT
    return torch.exp(exponent + outputscale.log()[..., None, None])


def cosine_features(
    x: Float[Tensor, "*#b n d"], weight: Float[Tensor, "*#b p d"]
) -> Float[Tensor, "*#b n p"]:
    """Return features of the cosine kernel, φ(x) = Wx/‖Wx‖ (KEP-SVGP's φ_q and φ_k).

    Args:
        x: inputs.
        weight: W, the projection of each head.

    Returns:
        Vectors of length one; zero, with a finite gradient, where Wx is zero.

    Raises:
        ValueError: ``x`` and ``weight`` differ in their last dimension, their batches do not
            broadcast, or a dtype is neither float32 nor float64.
    """
    check_real(x=x, weight=weight)
    if (
        min(x.ndim, weight.ndim) < 2
        or x.shape[-1] != weight.shape[-1]
        or not broadcastable(x.shape[:-2], weight.shape[:-2])
    ):
        raise ValueError(
            "x and weight must have the shapes (..., n, d) and (..., p, d), got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    projected = x @ weight.mT
    square = (projected * projected).sum(-1, keepdim=True)
    # A direction does not exist at zero: divide by one there, so that padding tokens stay harmless.
    tiny = torch.finfo(square.dtype).tiny
    return projected * torch.where(square > tiny, square, torch.ones_like(square)).rsqrt()


class Exponential(ARDKernel):
    """Exponential dot-product kernel σ_f² exp(Σ_j x_j z_j/σ_j²); arguments as ``ARDKernel``.

    Its variance σ_f² exp(Σ_j x_j²/σ_j²) differs from point to point and is unbounded.
    """

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return _exponential(x, z, self.lengthscale, self.outputscale)

    def _variance(self, x: Tensor) -> Tensor:
        exponent = (x / self.lengthscale).square().sum(-1)
        return torch.exp(exponent + self.raw_outputscale[..., None])


class Linear(ARDKernel):
    """Lines through the origin, σ_f² Σ_j x_j z_j/ℓ_j²; see ``ARDKernel`` for the arguments.

    The slope in dimension j has the deviation σ_f/ℓ_j. Add a ``Constant`` for the level.
    """

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Infinity."""
        return torch.full_like(self.raw_lengthscale.detach(), torch.inf)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return one term at frequency zero: a quadrature integrates lines exactly."""
        return [Spectrum(0.0)]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        scale = self.outputscale[..., None, None]
        return scale * ((x / self.lengthscale) @ (z / self.lengthscale).mT)

    def _variance(self, x: Tensor) -> Tensor:
        return self.outputscale[..., None] * (x / self.lengthscale).square().sum(-1)
