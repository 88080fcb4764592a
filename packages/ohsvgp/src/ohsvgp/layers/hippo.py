"""A probabilistic state-space layer: HiPPO inducing variables as the state (thesis section 6.2)."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ohsvgp.bases.base import TimeBasis
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.quadrature import QuadratureBasis
from ohsvgp.core import precision_root
from ohsvgp.layers.base import Forecast, TimeLayer, time_kernel
from ohsvgp.layers.recurrence import Recurrence
from ohsvgp.layers.scan import Steps, scan
from probseq.kernels import RBF

# The first windows, much shorter than a lengthscale, are nearly singular; more would cost digits.
_REL_JITTER = 1e-9


class HiPPOLayer(TimeLayer):
    """State-space layer whose state is a Gaussian posterior; experimental, not in the papers.

    Each head is a function f of time with an RBF kernel of its own lengthscale and variance; the
    s = dim / H channels share the covariance. A token is an observation y_t of f(t) with precision
    λ_t, both linear in it but for a softplus. The state is the site (G, h) that the tokens so far
    leave on M whitened inducing variables, e.g. projections of the whole past on Legendre
    polynomials (HiPPO-LegS), M² + Ms numbers a head however long the sequence. It follows the
    window as in ``OnlineGP`` with ``alpha=0``,

        G_t = T_tᵀ G_{t−1} T_t + λ_t Ψ_t Ψ_tᵀ        h_t = T_tᵀ h_{t−1} + λ_t Ψ_t y_tᵀ,

    T_t and Ψ_t from times and lengthscales alone, in float64. That is linear in (G, h), and the
    states of all tokens come from one associative scan. A token's value is a draw of f(t) given
    this token and those before:

        mean_t = Ψ_tᵀ(I + G_t)⁻¹h_t,   var_t = k(t, t) − |Ψ_t|² + Ψ_tᵀ(I + G_t)⁻¹Ψ_t.

    It approaches the exact Gaussian process filter as M grows: M = 2.4 T/ℓ is enough of a
    sequence of duration T, and a basis with ``num_nodes=2 * M`` is as exact then as with the
    default, and several times faster. O(M³) a token and head. ``torch.compile`` breaks its graph.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        basis: gives M and the inducing variables; any that lies on points of time.
        lengthscale: to start from, in the unit of the stamps: one number, or one a head.

    Raises:
        ValueError: a size or lengthscale is out of range, or the basis is of another kind.

    Example:
        >>> import torch
        >>> from ohsvgp import HiPPOLayer, LegS
        >>> layer = HiPPOLayer(8, num_heads=2, basis=LegS(16), lengthscale=5.0)
        >>> values, kl = layer(torch.randn(3, 20, 8), times=torch.rand(20).cumsum(0))
        >>> values.shape, kl.shape
        (torch.Size([3, 20, 8]), torch.Size([]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        basis: TimeBasis,
        *,
        lengthscale: float | Tensor,
    ) -> None:
        super().__init__(dim, num_heads)
        if not isinstance(basis, (QuadratureBasis, UniformGrid)):
            raise ValueError(
                "basis must lie on points of time, as LegS, LegT, LagT, FouT, Cosine and "
                f"UniformGrid do, got {type(basis).__name__}"
            )
        self.recurrence = Recurrence(time_kernel(RBF, num_heads, lengthscale), basis, _REL_JITTER)

    def forecast(
        self,
        times: Float64[Tensor, " t"],
        y: Float[Tensor, "b t h s"],
        lam: Float[Tensor, "b t h"],
    ) -> Forecast:
        """Predict f(t) from the sites before t: see ``TimeLayer.forecast``."""
        T, Psi, rest = (each.to(y.dtype)[:, None] for each in self.recurrence.windows(times))
        y, lam = y.transpose(0, 1), lam.transpose(0, 1)
        # The site of token t − 1 in the window of t: λ ψψᵀ and λ ψyᵀ with ψ = T_tᵀ Ψ_{t−1}.
        psi = T.mT @ Psi[:-1, ..., None]
        scaled = lam[:-1, ..., None, None] * psi
        carried = scan(Steps(T, scaled @ psi.mT, scaled @ y[:-1, ..., None, :]))
        # T_tᵀ G_{t−1} T_t and T_tᵀ h_{t−1}; nothing comes before the first token.
        none = Psi.new_zeros(1, *lam.shape[1:], Psi.shape[-1], 1)
        G = torch.cat([none.expand(*none.shape[:-1], Psi.shape[-1]), carried.precision])
        h = torch.cat([none.expand(*none.shape[:-1], y.shape[-1]), carried.shift])
        # w = (I + G)⁻¹Ψ:   m⁻ = wᵀh,   p = Ψᵀw,   r = k(t, t) − |Ψ|².
        Psi = Psi[..., None].expand(*G.shape[:-1], 1)
        w = torch.cholesky_solve(Psi, precision_root(G))
        mean, variance = (w.mT @ h)[..., 0, :], (w * Psi).sum((-2, -1))
        # ½ tr(G_{t−1} (I − T_t T_tᵀ)), where G_{t−1} is its carried part and λ ΨΨᵀ.
        carried_trace = G.diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = carried_trace + lam * Psi.square().sum((-2, -1))
        lost = nn.functional.pad(0.5 * (trace[:-1] - carried_trace[1:]), (0, 0, 0, 0, 1, 0))
        # Round-off must not reach the square root of the variance.
        floor = torch.finfo(y.dtype).eps * self.recurrence.kernel.outputscale.detach()
        rest = torch.maximum(rest, floor)
        batch_first = (each.transpose(0, 1) for each in (mean, variance, rest, lost))
        return Forecast(*batch_first)
