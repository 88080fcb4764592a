"""How the inducing variables of a whole sequence follow its windows: no data, only times."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ohsvgp import core
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.quadrature import QuadratureBasis
from ohsvgp.inducing import PointFunctional
from ohsvgp.whitening import whiten
from probseq.kernels import ARDKernel

# Windows that are worked on at once: covariances of the nodes take most of the memory.
_CHUNK = 64


class Windows(NamedTuple):
    """Relations between whitened inducing variables v_t of successive windows and f(t)."""

    # T of every window but the first, E[v_{t−1} | v_t] = T_t v_t, shape (t − 1, H, M, M)
    transition: Float64[Tensor, "t-1 h m m"]
    features: Float64[Tensor, "t h m"]  # Ψ, the covariance of v_t and f(t), shape (t, H, M)
    # Prior variance of f(t) that is left once v_t is known, k(t, t) − |Ψ_t|²; at least 0, but for
    # round-off; shape (t, H)
    unexplained: Float64[Tensor, "t h"]


class Recurrence(nn.Module):
    """Inducing variables on the growing window [0, t], or what a basis makes of it.

    Args:
        kernel: covariance function of time, of batch shape (H,).
        basis: gives the inducing set of each window.
        rel_jitter: of ``ohsvgp.whitening.whiten``.
    """

    def __init__(
        self, kernel: ARDKernel, basis: QuadratureBasis | UniformGrid, rel_jitter: float
    ) -> None:
        super().__init__()
        self.kernel, self.basis, self.rel_jitter = kernel, basis, rel_jitter

    def windows(self, lengths: Float64[Tensor, " t"]) -> Windows:
        """Return ``Windows`` in float64, whatever the dtype of the kernel's parameters.

        Args:
            lengths: ends of the windows, counted from their start; in order.

        Raises:
            CholeskyError: the covariance of an inducing set cannot be factorised.
        """
        double = {name: parameter.double() for name, parameter in self.named_parameters()}
        return cast(Windows, torch.func.functional_call(self, double, (lengths,)))

    def forward(self, lengths: Float64[Tensor, " t"]) -> Windows:
        """Return ``windows`` in the dtype of the parameters."""
        chunks = [
            self._chunk(lengths[max(start - 1, 0) : start + _CHUNK], new=start > 0)
            for start in range(0, len(lengths), _CHUNK)
        ]
        T, Psi, unexplained = (torch.cat(fields) for fields in zip(*chunks, strict=True))
        return Windows(T, Psi, unexplained)

    def _chunk(self, lengths: Tensor, *, new: bool) -> Windows:
        """Return windows of a few lengths, without the first of them if ``new``."""
        kernel, first = self.kernel, int(new)
        sets = [self.basis.inducing(kernel, length) for length in lengths.tolist()]
        inducing = _stacked(cast("list[PointFunctional]", sets))
        L = whiten(inducing.covariance(kernel), rel_jitter=self.rel_jitter)
        # Ψ_t = L_t⁻¹ K_{u_t f(t)}.
        t = lengths[:, None, None, None]
        Psi = core.features(kernel, inducing, L, t)[..., 0]
        # T_t = L_{t−1}⁻¹ K_{t−1,t} L_t⁻ᵀ, I where the window stays.
        (before, old), (after, now) = (
            (
                PointFunctional(**{k: v[windows] for k, v in inducing.tensors().items()}),
                type(L)(**{k: v[windows] for k, v in L.tensors().items()}),
            )
            for windows in (slice(-1), slice(1, None))
        )
        moved = core.transition(old, before.cross_inducing(kernel, after), now)
        eye = torch.eye(moved.shape[-1], dtype=moved.dtype, device=moved.device)
        T = torch.where((lengths.diff() == 0)[:, None, None, None], eye, moved)
        unexplained = kernel.diag(t)[..., 0] - Psi.square().sum(-1)
        return Windows(T, Psi[first:], unexplained[first:])


def _stacked(sets: Sequence[PointFunctional]) -> PointFunctional:
    """Return all sets as one with leading dimensions (t, heads).

    Sets of fewer nodes than others get copies of their last one, of weight zero.
    """
    longest = max(each.nodes.shape[-2] for each in sets)
    nodes = [_repeat_last(each.nodes, longest) for each in sets]
    heads = 1 if nodes[0].ndim == 2 else nodes[0].shape[0]
    stacked = torch.stack(nodes).reshape(len(sets), heads, longest, 1)
    if sets[0].weights is None:
        return PointFunctional(stacked)
    weights = [
        nn.functional.pad(W, (0, longest - W.shape[-1]))
        for each in sets
        if (W := each.weights) is not None
    ]
    M = weights[0].shape[-2]
    return PointFunctional(stacked, torch.stack(weights).reshape(len(sets), heads, M, longest))


def _repeat_last(nodes: Tensor, count: int) -> Tensor:
    extra = count - nodes.shape[-2]
    return torch.cat([nodes, nodes[..., -1:, :].expand(*nodes.shape[:-2], extra, 1)], -2)
