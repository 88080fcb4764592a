"""Laguerre polynomials under an exponentially fading past (HiPPO-LagT)."""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.quadrature import QuadratureBasis, check_inside
from ohsvgp.hippo.legendre import gauss_legendre
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.checks import check_positive
from probseq.kernels import Kernel

# |L_m(s)| e^{−s/2} ≤ 1, so what lies beyond 64 time scales adds less than 2 e^{−32} = 3e-14.
_HORIZON = 64.0
# What weighs more than e^{−10} lies in a window of so many time scales.
_MEMORY = 10.0


class LagT(QuadratureBasis):
    """u_m = ∫_0^∞ f(t − τs) L_m(s) e^{−s} ds: the past fades with time scale τ (thesis A.1).

    The thesis has τ = 1, whatever the unit of time.

    The quadrature is Gauss-Legendre in r = √s on [0, 8]. Laguerre polynomials oscillate like
    J_0(2√m r), at an even pace in r, so that Q in proportion to √M resolves them; the nodes crowd
    near the present, where the weight is. Gauss-Laguerre nodes reach out to 4Q, where the weights
    underflow from Q = 187 on, and most of them are wasted.

    The weights fade so fast that K_uu has the rank of about 20 at M = 50, and 40 at M = 150:
    more than that adds nothing but jitter.

    τ is in units of the time stamps; Q, if None, is as ``QuadratureBasis`` says of a window of 10τ,
    with 2M + 200 nodes on a panel.
    """

    def __init__(
        self, num_inducing: int, timescale: float, *, num_nodes: int | None = None
    ) -> None:
        super().__init__(num_inducing, num_nodes=num_nodes)
        check_positive(timescale=timescale)
        self.timescale = float(timescale)

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return nodes before ``length``, as far back as 64τ: before t0 too."""
        tau = self.timescale
        s, weights = self.choose(_rule, kernel, tau, _MEMORY * tau, degree=None, spare=200)
        like = kernel.like
        nodes = (length - tau * s).to(like)
        return PointFunctional(nodes[:, None], weights.to(like))

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "m n"]:
        """Return g_m(x) = L_m((t − x)/τ), orthonormal under e^{−(t−x)/τ}/τ.

        The sum Σ u_m g_m converges in that measure; far in the past, where the measure is small,
        |g_m| grows like e^{(t−x)/2τ}.
        """
        check_inside(x, -torch.inf, length)
        s = ((length - x[:, 0]) / self.timescale).clamp_min(0)
        return _damped_laguerre(self.num_inducing, s) * (0.5 * s).exp()


def _damped_laguerre(M: int, s: Tensor) -> Tensor:
    """Return L_m(s) e^{−s/2} for m < M; never above 1, so the recurrence cannot overflow."""
    start = (-0.5 * s).exp()
    rows = [start, (1 - s) * start]
    for m in range(1, M - 1):
        rows.append(((2 * m + 1 - s) * rows[m] - m * rows[m - 1]) / (m + 1))
    return torch.stack(rows[:M])


@lru_cache(maxsize=16)
def _rule(M: int, Q: int, panels: int) -> tuple[Tensor, Tensor]:
    """Return nodes in s and W, from ds = 2r dr."""
    nodes, weights = gauss_legendre(Q, panels)
    root = _HORIZON**0.5
    r = 0.5 * root * (1 + nodes)
    s = r.square()
    density = 2 * r * root * weights * (-0.5 * s).exp()
    return s, _damped_laguerre(M, s) * density
