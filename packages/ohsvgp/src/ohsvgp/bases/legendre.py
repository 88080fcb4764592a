"""Scaled Legendre polynomials on a growing window (HiPPO-LegS)."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases.base import TimeBasis
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import Kernel

__all__ = ["LegS"]


class LegS(TimeBasis):
    """u_m = (1/T) ∫_0^T f(s) √(2m+1) P_m(2s/T − 1) ds.

    Args:
        num_inducing: M.
        num_nodes: Q Gauss-Legendre nodes; 4M if None.

    Raises:
        ValueError: M below 1 or Q below M.
    """

    def __init__(self, num_inducing: int, *, num_nodes: int | None = None) -> None:
        self.num_inducing = num_inducing
        self.num_nodes = 4 * num_inducing if num_nodes is None else num_nodes

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Gauss-Legendre nodes on [0, length]."""
        nodes, weights = _rule(self.num_inducing, self.num_nodes)
        like = kernel.raw_lengthscale
        s = (0.5 * length * (1 + nodes)).to(like)[:, None]
        return PointFunctional(s, weights.to(like))


@lru_cache(maxsize=32)
def _rule(M: int, Q: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(Q)
    polynomials = np.polynomial.legendre.legvander(x, M - 1).T
    scale = np.sqrt(2 * np.arange(M) + 1)[:, None]
    return torch.from_numpy(x), torch.from_numpy(scale * polynomials * w / 2)
