"""Spectral normalisation with a bound (Miyato et al. 2018; Liu et al. 2020, Algorithm 1)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from probseq.checks import check_positive


class SpectralBound(nn.Module):
    r"""Scale a matrix down to a spectral norm of at most c: :math:`W \min(1, c / \sigma_{\max})`.

    The largest singular value is :math:`u^\top W v`. The vectors start as W's own, and each
    training pass improves them by a step of power iteration, as W changes slowly; in eval mode
    they stay. They are buffers, so that saved models keep them.

    Args:
        weight: the matrix at the start.
        bound: the largest spectral norm c.

    Raises:
        ValueError: ``bound`` is not positive.
    """

    def __init__(self, weight: Float[Tensor, "out in"], *, bound: float) -> None:
        super().__init__()
        check_positive(bound=bound)
        self.bound = bound
        left, _, right = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.register_buffer("left", left[:, 0].clone())
        self.register_buffer("right", right[0].clone())
        self.left: Tensor
        self.right: Tensor

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """Return the scaled matrix."""
        with torch.autocast(weight.device.type, enabled=False):
            if self.training:
                self._iterate(weight.detach())
            # Copies: a second pass before the backward pass may change the buffers.
            sigma = self.left.clone() @ (weight @ self.right.clone())
            return weight * (self.bound / sigma.clamp(min=self.bound))

    @torch.no_grad()
    def _iterate(self, weight: Tensor) -> None:
        self.left.copy_(F.normalize(weight @ self.right, dim=0))
        self.right.copy_(F.normalize(weight.mT @ self.left, dim=0))


def bound_spectral_norm(module: nn.Module, *, bound: float) -> None:
    """Bound the spectral norm of every linear layer inside a module."""
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear):
            scale = SpectralBound(layer.weight, bound=bound)
            parametrize.register_parametrization(layer, "weight", scale)
