"""Whitening of inducing variables: R with R K_uu Rᵀ = I."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.errors import CholeskyError
from probseq.linalg import default_jitter, safe_cholesky, triangular_inverse

# Beyond 1e-4 of the mean variance, jitter is no longer round-off but another model.
_MAX_RELATIVE_JITTER = 1e-4


class Whitening(NamedTuple):
    """A factor R of the inverse of K_uu; v = R u has covariance I."""

    # Absolute jitter that was added to K_uu, shape (*b); zero by eigenvalues
    jitter: Float[Tensor, "*b"]
    relative_jitter: Float[Tensor, "*b"]  # the same in units of the mean of K_uu's diagonal
    rank: Tensor  # number of directions in use, shape (*b), integers; M for the Cholesky factor
    # L = R⁻¹, lower triangular, shape (*b, M, M); None by eigenvalues
    root: Float[Tensor, "*b m m"] | None = None
    # R by eigenvalues, rows of dropped directions zero; None where L is
    directions: Float[Tensor, "*b m m"] | None = None

    @property
    def matrix(self) -> Float[Tensor, "*b m m"]:
        """Return R."""
        if self.directions is not None:
            return self.directions
        if self.root is None:
            raise ValueError("Whitening must have a root or directions, got neither")
        return triangular_inverse(self.root)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that there are by field name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def apply(self, K: Float[Tensor, "*#b m n"]) -> Float[Tensor, "*b m n"]:
        """Return R K, by a triangular solve where there is a Cholesky factor.

        A product with the explicit inverse would be as near to R K, but not near to R K' for any
        K' near K: in float32, variances that remain after conditioning came out negative.

        Args:
            K: covariances of u, in the rows.
        """
        if self.root is None:
            return self.matrix @ K
        return torch.linalg.solve_triangular(self.root, K, upper=False)


def whiten(
    K_uu: Float[Tensor, "*b m m"],
    *,
    method: Literal["chol", "eig"] = "chol",
    rel_jitter: float | None = None,
) -> Whitening:
    """Factorise K_uu for the state in whitened form.

    "chol": R = L⁻¹ with L Lᵀ = K_uu + j·tr(K_uu)/M·I, j grown by ``safe_cholesky`` only where it
    must be, up to 1e-4. "eig": R = Λ^(-1/2) Vᵀ with the eigenvalues above j·tr(K_uu)/M; the other
    directions are dropped, which adds nothing to K_uu.

    Args:
        K_uu: prior covariances of the inducing variables.
        method: "chol" or "eig".
        rel_jitter: j; 1e-8 in float64 and 1e-6 in float32 if None.

    Returns:
        The factor, the jitter that it took and the rank.

    Raises:
        ValueError: another dtype than float32 or float64.
        CholeskyError: K_uu holds NaN or infinity, or is indefinite at a relative jitter of 1e-4.

    Warns:
        JitterWarning: more than ``rel_jitter`` was needed.
    """
    relative = default_jitter(K_uu.dtype) if rel_jitter is None else rel_jitter
    if method == "eig":
        # R = Λ^(-1/2) Vᵀ, rows of small eigenvalues zero.
        if not bool(K_uu.isfinite().all()):
            raise CholeskyError("K_uu must be finite, got NaN or infinity")
        values, vectors = torch.linalg.eigh(K_uu.detach())
        active = values > relative * K_uu.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        scale = torch.where(active, values.clamp_min(torch.finfo(values.dtype).tiny), 1).rsqrt()
        matrix = (active * scale)[..., None] * vectors.mT
        if K_uu.requires_grad:
            matrix = matrix + _variation(K_uu, values, vectors, active, scale)
        none = torch.zeros_like(values[..., 0])
        return Whitening(none, none, active.sum(-1), directions=matrix)
    tries = 1 + max(0, round(math.log10(_MAX_RELATIVE_JITTER / relative)))
    L = safe_cholesky(K_uu, jitter=relative, max_tries=tries)
    # What the factor holds more than K_uu does is what safe_cholesky added to the diagonal.
    variance = K_uu.detach().diagonal(dim1=-2, dim2=-1)
    jitter = (L.detach().square().sum(-1) - variance).mean(-1)
    rank = torch.full(K_uu.shape[:-2], K_uu.shape[-1], device=K_uu.device)
    return Whitening(jitter, jitter / variance.mean(-1), rank, root=L)


def check_jitter(rel_jitter: float | None) -> None:
    """Refuse a relative jitter that cannot work.

    Args:
        rel_jitter: as in ``whiten``.

    Raises:
        ValueError: it is not in (0, 1e-4].
    """
    if rel_jitter is not None and not 0 < rel_jitter <= _MAX_RELATIVE_JITTER:
        raise ValueError(f"rel_jitter must be in (0, {_MAX_RELATIVE_JITTER:g}], got {rel_jitter:g}")


def _variation(K: Tensor, values: Tensor, vectors: Tensor, active: Tensor, scale: Tensor) -> Tensor:
    """Return zeros whose gradient in K is that of R = Λ^(-1/2) Vᵀ, but for rotations of R.

    With S = Vᵀ dK V, dR = Σ_i e_i λ_i^(-1/2) (Σ_kept −S_ij/(2λ_j) v_jᵀ + Σ_dropped S_ij/(λ_i − λ_j)
    v_jᵀ). It keeps R K Rᵀ = I; the gradient of ``eigh``, which turns these directions into one
    another too, is NaN at equal eigenvalues.
    """
    gap = values[..., :, None] - values[..., None, :]
    gap = torch.where(active[..., None, :], -2 * values[..., None, :], gap)
    inverse = torch.where(active[..., :, None], 1 / gap, 0)
    S = vectors.mT @ (K - K.detach()) @ vectors
    return (active * scale)[..., None] * ((S * inverse) @ vectors.mT)
