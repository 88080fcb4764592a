"""Inducing points on an even grid that stretches with the window."""

import torch

from ohsvgp.bases.base import TimeBasis
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import Kernel


class UniformGrid(TimeBasis):
    """u_m = f(z_m), z_m = mT/(M−1) for m = 0 … M−1: the plain baseline of all moving bases.

    A single point lies in the middle of the window.
    """

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return the grid on [0, length]."""
        like = kernel.like
        if self.num_inducing == 1:
            return PointFunctional(like.new_full((1, 1), 0.5 * length))
        grid = torch.linspace(0.0, length, self.num_inducing, dtype=torch.float64)
        return PointFunctional(grid.to(like)[:, None])
