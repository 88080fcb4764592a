r"""Gaussian log densities of whole sequences, in blocks and in expectation over means."""

import math

from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.covariances import masked_cholesky
from probseq.linalg import triangular_inverse


def block_log_density(
    queries: Float[Tensor, "batch heads tokens tokens"],
    cross: Float[Tensor, "batch heads tokens tokens"],
    keys: Float[Tensor, "batch heads tokens tokens"],
    mean: Float[Tensor, "batch heads tokens channels"],
    observations: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Compute :math:`\sum_d \log \mathcal{N}([\nu_d; z_d]; 0, C)` as log p(z) + log p(ν | z).

    Covariances are zero where one token of a pair is padding, means and observations at padding;
    only real tokens, where the mask is true, are counted. The jitter is relative, ``None`` for
    machine epsilon.

    Raises:
        CholeskyError: a covariance cannot be factorised.
    """
    # p(z): L Lᵀ = C_kk and L⁻¹ z; products with inverse factors are cheaper than triangular solves.
    root = masked_cholesky(keys, mask, jitter=jitter)
    inverse = triangular_inverse(root)
    gain, whitened_keys = inverse @ cross.mT, inverse @ observations
    # p(ν | z): the Schur complement C_qq − C_qk C_kk⁻¹ C_kq, and ν less C_qk C_kk⁻¹ z, whitened.
    schur_root = masked_cholesky(queries - gain.mT @ gain, mask, jitter=jitter)
    whitened = triangular_inverse(schur_root) @ (mean - gain.mT @ whitened_keys)
    return _log_normal(root, whitened_keys, mask) + _log_normal(schur_root, whitened, mask)


def expected_log_density(
    covariance: Float[Tensor, "batch heads tokens tokens"],
    spread: Float[Tensor, "batch heads tokens tokens"] | None,
    values: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Compute :math:`\sum_d E \log \mathcal{N}(z_d; \mu, C)` over means :math:`\mu \sim N(0, D)`.

    .. math:: \log \mathcal{N}(z; 0, C) - \tfrac12 \mathrm{tr}(C^{-1} D)

    Without spread, D = 0, it is the log density; other arguments are as of
    :func:`block_log_density`.

    Raises:
        CholeskyError: C cannot be factorised.
    """
    root = masked_cholesky(covariance, mask, jitter=jitter)
    inverse = triangular_inverse(root)
    density = _log_normal(root, inverse @ values, mask)
    if spread is None:
        return density
    # tr(C⁻¹ D) = tr(L⁻¹ D L⁻ᵀ).
    trace = ((inverse @ spread) * inverse).sum((-2, -1))
    return density - 0.5 * values.shape[-1] * trace


def _log_normal(
    root: Float[Tensor, "batch heads tokens tokens"],
    whitened: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None,
) -> Float[Tensor, "batch heads"]:
    """Sum over channels of the log density of values that the Cholesky factor has whitened."""
    # Per token: log of the factor's diagonal, and half of log 2π.
    logs = root.diagonal(dim1=-2, dim2=-1).log() + 0.5 * math.log(2.0 * math.pi)
    if mask is not None:
        logs = logs.masked_fill(~mask[:, None], 0.0)
    return -0.5 * whitened.square().sum((-2, -1)) - whitened.shape[-1] * logs.sum(-1)
