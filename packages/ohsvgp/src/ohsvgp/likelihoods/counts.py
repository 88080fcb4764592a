"""What likelihoods of counts with a logarithmic link share."""

import math

import torch
from torch import Tensor

from ohsvgp.likelihoods.quadrature import QuadratureLikelihood
from probseq.gaussians import DiagonalGaussian

__all__ = ["CountLikelihood", "bounded_exp"]


class CountLikelihood(QuadratureLikelihood):
    """Counts 0, 1, 2, … of mean exp(f)."""

    def start(self, mean: Tensor, variance: Tensor, y: Tensor) -> DiagonalGaussian:
        """At the likelihood's peak: from far below it, a step of length one ends far above it."""
        peak = (y + 0.5).log().expand(torch.broadcast_shapes(mean.shape, y.shape))
        return DiagonalGaussian(peak, torch.zeros_like(peak))

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but non-negative integers.

        Raises:
            ValueError: names the first such target.
        """
        wrong = y[~((y >= 0) & (y == y.floor()) & y.isfinite())]
        if wrong.numel():
            raise ValueError(
                f"y must hold counts 0, 1, 2, … for {type(self).__name__}, got {float(wrong[0])}"
            )


def bounded_exp(x: Tensor) -> Tensor:
    """The exponential, held at the root of the largest number so that its square is finite."""
    return x.clamp_max(0.49 * math.log(torch.finfo(x.dtype).max)).exp()
