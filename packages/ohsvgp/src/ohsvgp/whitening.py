"""Whitening of inducing variables: R with R K_uu Rᵀ = I."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.linalg import default_jitter, safe_cholesky, triangular_inverse

# Beyond 1e-4 of the mean variance, jitter is no longer round-off but another model.
_MAX_RELATIVE_JITTER = 1e-4


class Whitening(NamedTuple):
    """The factor R = L⁻¹ of the inverse of K_uu = L Lᵀ; v = R u has covariance I."""

    root: Float[Tensor, "*b m m"]  # L, lower triangular
    jitter: Float[Tensor, "*b"]  # added to K_uu's diagonal
    relative_jitter: Float[Tensor, "*b"]  # the same in units of the mean of K_uu's diagonal

    @property
    def matrix(self) -> Float[Tensor, "*b m m"]:
        """Return R."""
        return triangular_inverse(self.root)

    def apply(self, K: Float[Tensor, "*#b m n"]) -> Float[Tensor, "*b m n"]:
        """Return R K, by a triangular solve.

        A product with the explicit inverse would be as near to R K, but not near to R K' for any
        K' near K: in float32, variances that remain after conditioning came out negative.
        """
        return torch.linalg.solve_triangular(self.root, K, upper=False)


def whiten(K_uu: Float[Tensor, "*b m m"], *, rel_jitter: float | None = None) -> Whitening:
    """Factorise K_uu + j·tr(K_uu)/M·I, j grown by ``safe_cholesky`` only where it must be.

    j starts at ``rel_jitter``, 1e-8 in float64 and 1e-6 in float32 if None, and reaches 1e-4.

    Raises:
        CholeskyError: K_uu holds NaN or infinity, or is indefinite at a relative jitter of 1e-4.

    Warns:
        JitterWarning: more than ``rel_jitter`` was needed.
    """
    relative = default_jitter(K_uu.dtype) if rel_jitter is None else rel_jitter
    tries = 1 + max(0, round(math.log10(_MAX_RELATIVE_JITTER / relative)))
    L = safe_cholesky(K_uu, jitter=relative, max_tries=tries)
    # L Lᵀ holds more than K_uu by what safe_cholesky added to the diagonal.
    variance = K_uu.detach().diagonal(dim1=-2, dim2=-1)
    jitter = (L.detach().square().sum(-1) - variance).mean(-1)
    return Whitening(L, jitter, jitter / variance.mean(-1))


def check_jitter(rel_jitter: float | None) -> None:
    """Refuse a relative jitter that cannot work."""
    if rel_jitter is not None and not 0 < rel_jitter <= _MAX_RELATIVE_JITTER:
        raise ValueError(f"rel_jitter must be in (0, {_MAX_RELATIVE_JITTER:g}], got {rel_jitter:g}")
