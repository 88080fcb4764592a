"""Quadrature rules that turn projections on a window into functionals of point values."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import TimeBasis

__all__ = ["QuadratureBasis", "check_inside", "check_positive", "default_nodes", "gauss_legendre"]


class QuadratureBasis(TimeBasis):
    """A basis u_m = ∫ f(s) g_m(s) ω(s) ds, the integral by Q nodes inside the window.

    Any Q is a valid model, since all covariances come from the same point values; a large Q makes
    it the model of the integral. Kernels with kinks (Matérn) converge as a power of 1/Q.

    Thesis Eq. 4.10 to 4.17 evolve covariances of the integrals by an ODE and random features; they
    come directly here, and ``RecurrentFeatures`` is the thesis' own way.

    Args:
        num_inducing: M.
        num_nodes: Q; ``default_nodes(M)`` if None.

    Raises:
        ValueError: M below 1 or Q below M.
    """

    def __init__(self, num_inducing: int, *, num_nodes: int | None = None) -> None:
        if num_inducing < 1:
            raise ValueError(f"num_inducing must be at least 1, got {num_inducing}")
        self.num_inducing = num_inducing
        self.num_nodes = default_nodes(num_inducing) if num_nodes is None else num_nodes
        if self.num_nodes < num_inducing:
            raise ValueError(
                f"num_nodes must be at least num_inducing={num_inducing}, got {self.num_nodes}: "
                "the inducing variables would depend on each other"
            )


def default_nodes(M: int) -> int:
    """Q = 2M + 100: 2M resolve the basis, and 100 more a kernel that is finer than a small basis.

    On a stream of a hundred lengthscales the predictions are then those of a converged rule, at
    M = 50 as at M = 150.
    """
    return 2 * M + 100


@lru_cache(maxsize=64)
def gauss_legendre(Q: int) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Nodes on [−1, 1] and weights of the uniform probability measure there, float64.

    Args:
        Q: number of nodes; exact for polynomials of degree 2Q − 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(Q)
    return torch.from_numpy(nodes), torch.from_numpy(weights / 2)


def check_positive(name: str, value: float) -> float:
    """The value, if it can be a length of time.

    Raises:
        ValueError: not above 0, or not finite.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a time above 0 and finite, got {value}")
    return float(value)


def check_inside(x: Tensor, start: float, end: float) -> None:
    """Refuse inputs where orthogonal functions mean nothing.

    Raises:
        ValueError: an input outside [start, end] by more than round-off.
    """
    slack = 16 * torch.finfo(x.dtype).eps * max(abs(start) if math.isfinite(start) else 0.0, end)
    outside = (x < start - slack) | (x > end + slack)
    if bool(outside.any()):
        raise ValueError(
            f"t must lie inside the window of the basis, [{start:g}, {end:g}] counted from t0, "
            f"got {float(x[outside][0]):g}: use predict there"
        )
