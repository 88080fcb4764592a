"""Legendre polynomials and their quadrature."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["gauss_legendre", "scaled_legendre"]


@lru_cache(maxsize=64)
def gauss_legendre(Q: int, panels: int = 1) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Nodes on [−1, 1] and weights of the uniform probability measure there, float64.

    Args:
        Q: number of nodes on a panel; exact for polynomials of degree 2Q − 1.
        panels: equal parts of [−1, 1] with Q nodes each.
    """
    nodes, weights = np.polynomial.legendre.leggauss(Q)
    if panels > 1:
        middles = (np.arange(1 - panels, panels, 2) / panels)[:, None]
        nodes, weights = (middles + nodes / panels).ravel(), np.tile(weights / panels, panels)
    # Copied, so that their addresses are aligned in each process.
    return torch.tensor(nodes), torch.tensor(weights / 2)


def scaled_legendre(M: int, s: Float[Tensor, " n"]) -> Float[Tensor, "m n"]:
    """√(2m+1) P_m(s) for m < M: orthonormal under the uniform probability measure on [−1, 1].

    Args:
        M: number of polynomials.
        s: arguments in [−1, 1].
    """
    rows = [torch.ones_like(s), s]
    for m in range(1, M - 1):
        # (m+1) P_{m+1} = (2m+1) s P_m − m P_{m−1}, with whole numbers, which are exact.
        product = torch.addcmul(-m * rows[m - 1], s, rows[m], value=2 * m + 1)
        rows.append(product / (m + 1))
    scale = (2 * torch.arange(M, dtype=s.dtype, device=s.device) + 1).sqrt()
    return scale[:, None] * torch.stack(rows[:M])
