"""Legendre polynomials on a growing window (HiPPO-LegS) and on a sliding one (HiPPO-LegT)."""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.quadrature import QuadratureBasis, check_inside
from ohsvgp.hippo.legendre import gauss_legendre, scaled_legendre
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.checks import check_positive
from probseq.kernels import Kernel


class LegS(QuadratureBasis):
    """u_m = (1/T) ∫_0^T f(s) √(2m+1) P_m(2s/T − 1) ds: all of the past counts alike (thesis 2.1.2).

    The integrals are Gauss-Legendre sums on [0, T]. With ``num_nodes`` = M the model is the sparse
    GP whose inducing points are the nodes. At T = 0, u = (f(0), 0, …, 0).

    For ``num_nodes`` see ``QuadratureBasis``.
    """

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return nodes on [0, length] and the polynomials there."""
        return _on_window(self, kernel, 0.0, length)

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "m n"]:
        """Return g_m(x) = √(2m+1) P_m(2x/T − 1), orthonormal under the uniform measure."""
        return _functions(self.num_inducing, x, 0.0, length)


class LegT(QuadratureBasis):
    """u_m = (1/θ) ∫_{t−θ}^t f(s) √(2m+1) P_m(2(s−t)/θ + 1) ds: the last θ only (thesis A.1).

    What lies before t − θ is forgotten as the window slides. While t < θ the window begins before
    t0, where f is as uncertain as the prior says; K_uu is the same at all times for a stationary
    kernel.

    The window θ is in units of the time stamps; for ``num_nodes`` see ``QuadratureBasis``.
    """

    def __init__(self, num_inducing: int, window: float, *, num_nodes: int | None = None) -> None:
        super().__init__(num_inducing, num_nodes=num_nodes)
        check_positive(window=window)
        self.window = float(window)

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return nodes on [length − θ, length] and the polynomials there."""
        return _on_window(self, kernel, length - self.window, self.window)

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "m n"]:
        """Return g_m(x) = √(2m+1) P_m(2(x−t)/θ + 1), orthonormal under the uniform measure."""
        return _functions(self.num_inducing, x, length - self.window, self.window)


def _functions(M: int, x: Tensor, start: float, width: float) -> Tensor:
    check_inside(x, start, start + width)
    # A window of no width holds one point, its end; all coefficients but the first are zero there.
    s = 2 * (x[:, 0] - start) / width - 1 if width > 0 else torch.ones_like(x[:, 0])
    return scaled_legendre(M, s)


def _on_window(
    basis: QuadratureBasis, kernel: Kernel, start: float, width: float
) -> PointFunctional:
    nodes, weights = basis.choose(
        _rule, kernel, 0.5 * width, width, degree=float(basis.num_inducing)
    )
    like = kernel.like
    return PointFunctional((start + 0.5 * width * (1 + nodes)).to(like)[:, None], weights.to(like))


@lru_cache(maxsize=16)
def _rule(M: int, Q: int, panels: int) -> tuple[Tensor, Tensor]:
    nodes, weights = gauss_legendre(Q, panels)
    return nodes, scaled_legendre(M, nodes) * weights
