"""Cosines and sines: on a sliding window (HiPPO-FouT), and cosines on the growing one."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.quadrature import QuadratureBasis, check_inside, wave_degree
from ohsvgp.hippo.legendre import gauss_legendre
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.checks import check_positive
from probseq.kernels import Kernel

# Cosines of the wider interval are nearly dependent on the window; directions of their Gram
# matrix below this part of the largest carry nothing but round-off.
_GRAM_CUTOFF = 1e-9


class FouT(QuadratureBasis):
    """Fourier coefficients of the last θ: u_m = (1/θ) ∫_{t−θ}^t f(s) g_m(s) ds (thesis A.1).

    g_0 = 1, then pairs √2 cos(2πk(t−s)/θ), √2 sin(2πk(t−s)/θ), k = 1, 2, …; with an even M the
    last sine is left out. Thesis A.1 has complex exponentials, whose real and imaginary parts for
    m ≥ 0 these are up to the factor √2, which makes them orthonormal.

    While t < θ the window begins before t0; K_uu is the same at all times for a stationary kernel.

    θ, ``window``, is in units of the time stamps; for ``num_nodes`` see ``QuadratureBasis``
    (equally spaced nodes would be no better than a trapezium rule: f is not periodic).
    """

    def __init__(self, num_inducing: int, window: float, *, num_nodes: int | None = None) -> None:
        super().__init__(num_inducing, num_nodes=num_nodes)
        check_positive(window=window)
        self.window = float(window)

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return nodes on [length − θ, length] and the waves there."""
        degree = _degree(self.num_inducing)
        age, weights = self.choose(_rule, kernel, self.window, self.window, degree=degree)
        like = kernel.like
        nodes = (length - self.window * age).to(like)
        return PointFunctional(nodes[:, None], weights.to(like))

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "m n"]:
        """Return the g_m at x, orthonormal under the window's uniform measure.

        Their sum has the period θ, so it cannot follow f to both ends of the window.
        """
        check_inside(x, length - self.window, length)
        return _pairs(self.num_inducing, (length - x[:, 0]) / self.window)


class Cosine(QuadratureBasis):
    """u_n = (1/T) ∫_0^T f(s) cos(πn(s + ℓ)/(T + 2ℓ)) ds, n = 0 … M−1, ℓ the kernel's lengthscale.

    Half-waves of an interval one lengthscale wider than the window at both ends: there the slope
    of a sum of cosines is zero, which f's is not inside the window. Not in the thesis.

    For ``num_nodes`` see ``QuadratureBasis``.
    """

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return nodes on [0, length] and the cosines of each head of the kernel."""
        nodes, cosines, weights = self._cosines(kernel, length)
        return PointFunctional(nodes.expand(*cosines.shape[:-2], -1, 1), cosines * weights)

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "*b m n"]:
        """Return the dual functions g = G⁺ c(x), G the cosines' Gram matrix (uniform measure).

        The cosines c are orthogonal on the wider interval and not on the window, where
        Σ u_n g_n with these g is the orthogonal projection of f on their span.
        """
        check_inside(x, 0.0, length)
        _, cosines, weights = self._cosines(kernel, length)
        gram = (cosines * weights) @ cosines.mT
        # g = G⁺ c(x), small eigenvalues of G cut.
        inverse = torch.linalg.pinv(gram, rtol=_GRAM_CUTOFF, hermitian=True)
        return (inverse @ _half_waves(self.num_inducing, x.mT, kernel, length)).detach()

    def _cosines(self, kernel: Kernel, length: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return nodes (Q, 1), cosines there (*heads, M, Q), uniform weights (1, Q)."""
        degree = _degree(self.num_inducing)
        nodes, weights = self.choose(_uniform, kernel, 0.5 * length, length, degree=degree)
        like = kernel.like
        x = (0.5 * length * (1 + nodes)).to(like)[:, None]
        return x, _half_waves(self.num_inducing, x.mT, kernel, length), weights.to(like)


def _degree(M: int) -> float:
    """Return the degree of M/2 waves on the window."""
    return wave_degree(0.5 * math.pi * M)


def _half_waves(M: int, x: Tensor, kernel: Kernel, length: float) -> Tensor:
    """Return cos(πn(x + ℓ)/(T + 2ℓ)) of x (1, n) with a lengthscale of shape (*heads, 1, 1)."""
    # Where nothing sets a scale, as for lines, the window does.
    ell = torch.nan_to_num(kernel.resolution, posinf=length)
    n = torch.arange(M, dtype=x.dtype, device=x.device)[:, None]
    return (math.pi * n * ((x + ell) / (length + 2 * ell))).cos()


def _pairs(M: int, age: Tensor) -> Tensor:
    """Return 1, √2 cos 2πka, √2 sin 2πka, … of ages a in [0, 1]."""
    order = torch.arange(M, device=age.device)
    # In age's dtype at once: an integer tensor times a float is in torch's default dtype.
    phase = 2 * math.pi * ((order + 1) // 2).to(age)[:, None] * age
    waves = math.sqrt(2) * torch.where((order % 2 == 1)[:, None], phase.cos(), phase.sin())
    return torch.where((order == 0)[:, None], torch.ones_like(waves), waves)


def _uniform(M: int, Q: int, panels: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the uniform measure, (1, Q): no cosine exceeds one."""
    nodes, weights = gauss_legendre(Q, panels)
    return nodes, weights[None]


@lru_cache(maxsize=16)
def _rule(M: int, Q: int, panels: int) -> tuple[Tensor, Tensor]:
    nodes, weights = gauss_legendre(Q, panels)
    age = 0.5 * (1 - nodes)
    return age, _pairs(M, age) * weights
