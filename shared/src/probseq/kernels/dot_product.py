"""Kernels of dot products: they depend on where the points are, not only on their differences.

NaN and infinity in a tensor reach the result.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.kernels.base import ARDKernel, Spectrum

__all__ = ["Exponential", "Linear"]


class Exponential(ARDKernel):
    """Exponential dot-product kernel σ_f² exp(Σ_j x_j z_j/σ_j²); arguments as ``ARDKernel``.

    There is no factor ½ and no 1/√d: with σ_j² = √d it is the numerator of softmax attention.
    Entries overflow once the exponent passes 88 in float32.

    Its variance σ_f² exp(Σ_j x_j²/σ_j²) differs from point to point and is unbounded.
    """

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        # σ_f² goes into the exponent: one pass over the matrix less, and a small one delays
        # overflow.
        exponent = (x / self.lengthscale) @ (z / self.lengthscale).mT
        return torch.exp(exponent + self.outputscale.log()[..., None, None])

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
