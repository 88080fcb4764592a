r"""Joint covariances of correlated Gaussian processes (CGPT, Eqs. 13-20 and 45-52).

Queries and keys are two views of one canonical process :math:`z_o`:
:math:`z_q(x) = \sigma_q z_o(x W_q)`, :math:`z_k(x) = \sigma_k z_o(x W_k)`, the latter observed with
noise of variance σ². With the kernel κ on the projected tokens and the latent inputs
:math:`X_o = X W_o`, the blocks are

.. math::
    K_q = \sigma_q^2 \kappa(Q, Q),\quad K_{qo} = \sigma_q \kappa(Q, X_o),\quad
    K_{ok} = \sigma_k \kappa(X_o, K),\quad A = (K_o + \sigma^2 I)^{-1},\quad G = K_{qo} A.

The cross-covariances carry the scales: as printed below Eq. 20, without them, the conditional
covariance becomes indefinite once σ_q < 1.

Two joint distributions of :math:`(z_q, z_k)` are used. The *predictive* one conditions to the mean
(Eq. 22) and to the covariance (Eqs. 45-52). The *density* one, in which z_q and z_k are independent
given z_o (Eqs. 26-37), is what the regulariser evaluates. They are the same where the inducing
values are taken to be noisy, and without inducing values; with the paper's noise-free p(z_o) they
differ, because A has a σ² that p(z_o) has not.

Shapes: B sequences, H heads, T tokens, s head width; everything is ``(B, H, T, ...)``.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.kernel import Pairs, canonical_kernels
from cgpt.names import CanonicalPrior
from probseq.linalg import safe_cholesky, triangular_inverse


class Scales(NamedTuple):
    """Standard deviations of the processes and of the noise."""

    log_queries: Float[Tensor, " heads"]  # log σ_q
    log_keys: Float[Tensor, " heads"]  # log σ_k
    noise: float  # σ, of the observed keys (and of the inducing values)


class JointCovariance(NamedTuple):
    """Covariance of (z_q, z_k) in blocks; σ² is on the diagonal of ``keys``."""

    queries: Float[Tensor, "batch heads tokens tokens"]  # Cov(z_q)
    cross: Float[Tensor, "batch heads tokens tokens"]  # Cov(z_q, z_k), the attention matrix
    keys: Float[Tensor, "batch heads tokens tokens"]  # Cov(z_k)


class LatentCovariances(NamedTuple):
    """Covariances of the two processes induced through X_o; L Lᵀ = K_o + σ²I."""

    queries: Float[Tensor, "batch heads tokens tokens"]  # K_q
    keys: Float[Tensor, "batch heads tokens tokens"]  # K_k + σ²I
    whitened_queries: Float[Tensor, "batch heads tokens tokens"]  # L⁻¹ K_oq
    whitened_keys: Float[Tensor, "batch heads tokens tokens"]  # L⁻¹ K_ok
    # σ Gᵀ = σ A K_oq and σ A K_ok, which noise on the inducing values adds: None if it is there
    noise_queries: Float[Tensor, "batch heads tokens tokens"] | None
    noise_keys: Float[Tensor, "batch heads tokens tokens"] | None


def exact_covariance(
    queries: Float[Tensor, "batch heads tokens dim"],
    keys: Float[Tensor, "batch heads tokens dim"],
    scales: Scales,
    mask: Bool[Tensor, "batch tokens"] | None = None,
) -> JointCovariance:
    r"""Exact joint covariance of z_q and the noisy z_k, which are jointly Gaussian.

    (The paper says they are not.) With :math:`Z = (K_k + \sigma^2 I) V` the mean is plain
    asymmetric kernel attention :math:`\sigma_q \sigma_k \kappa(Q, K) V`.

    Queries and keys are divided by the lengthscale; the mask is true at real tokens.
    """
    log_q, log_k = scales.log_queries, scales.log_keys
    k_q, k_qk, k_k = _kernels(
        (queries, keys), ((0, 0), (0, 1), (1, 1)), (2.0 * log_q, log_q + log_k, 2.0 * log_k), mask
    )
    return JointCovariance(k_q, k_qk, plus_diagonal(k_k, scales.noise**2))


def latent_covariances(
    queries: Float[Tensor, "batch heads tokens dim"],
    keys: Float[Tensor, "batch heads tokens dim"],
    latent: Float[Tensor, "batch heads tokens dim"],
    scales: Scales,
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    canonical_prior: CanonicalPrior,
    jitter: float | None = None,
) -> LatentCovariances:
    """Covariances through the canonical process at the latent inputs X_o, O(T³).

    All inputs are divided by the lengthscale. The prior p(z_o) is N(0, K_o), or with ``"noisy"``
    N(0, K_o + σ²I); the jitter is relative, ``None`` for machine epsilon.
    """
    log_q, log_k = scales.log_queries, scales.log_keys
    k_q, k_k, k_o, k_oq, k_ok = _kernels(
        (queries, keys, latent),
        ((0, 0), (1, 1), (2, 2), (2, 0), (2, 1)),
        (2.0 * log_q, 2.0 * log_k, torch.zeros_like(log_q), log_q, log_k),
        mask,
    )
    tokens = k_q.shape[-1]
    # L⁻¹ [K_oq, K_ok]. Products with L⁻¹ cost a fraction of triangular solves.
    root = masked_cholesky(plus_diagonal(k_o, scales.noise**2), mask, jitter=jitter)
    inverse = triangular_inverse(root)
    whitened = inverse @ torch.cat([k_oq, k_ok], -1)
    whitened_queries, whitened_keys = whitened.split(tokens, -1)
    noise_queries = noise_keys = None
    if canonical_prior == "noise-free":
        # σ A [K_oq, K_ok] = σ L⁻ᵀ L⁻¹ [K_oq, K_ok].
        noise_queries, noise_keys = ((scales.noise * inverse).mT @ whitened).split(tokens, -1)
    return LatentCovariances(
        k_q,
        plus_diagonal(k_k, scales.noise**2),
        whitened_queries,
        whitened_keys,
        noise_queries,
        noise_keys,
    )


def predictive_joint(latent: LatentCovariances) -> JointCovariance:
    r"""Joint covariance whose conditional is the prediction (Eqs. 22 and 45-52).

    z_o | z_k is the exact GP posterior and z_q | z_o = N(G z_o, K_q − G K_oq), hence
    :math:`\mathrm{Cov}(z_q, z_k) = G K_{ok}`, :math:`\mathrm{Cov}(z_k) = K_k + \sigma^2 I` and
    :math:`\mathrm{Cov}(z_q) = K_q - \sigma^2 G G^\top`, the last term only if the inducing values
    are free of noise.
    """
    return JointCovariance(
        # K_q - σ² G Gᵀ, and G K_ok.
        _minus_square(latent.queries, latent.noise_queries),
        latent.whitened_queries.mT @ latent.whitened_keys,
        latent.keys,
    )


def density_joint(latent: LatentCovariances, predictive: JointCovariance) -> JointCovariance:
    r"""Joint covariance of z_q and the noisy z_k, independent given z_o (Eqs. 26-37).

    With P the covariance of z_o, :math:`G_k = K_{ko} A`,
    :math:`\Sigma_x = K_x - K_{xo} A K_{ox}`:

    .. math::
        \begin{bmatrix} \Sigma_q + G P G^\top & G P G_k^\top \\
        \cdot & \Sigma_k + \sigma^2 I + G_k P G_k^\top \end{bmatrix}.

    Latent inputs are those of :func:`latent_covariances`, and so is ``predictive``, which shares
    what does not differ.
    """
    if latent.noise_queries is None or latent.noise_keys is None:
        return predictive
    return JointCovariance(
        predictive.queries,
        # G K_o G_kᵀ = G K_ok - σ² G G_kᵀ, and K_k + σ²I - σ² G_k G_kᵀ.
        predictive.cross - latent.noise_queries.mT @ latent.noise_keys,
        _minus_square(latent.keys, latent.noise_keys),
    )


def conditional_covariances(latent: LatentCovariances) -> tuple[Tensor, Tensor]:
    """Covariances Σ_q of z_q and Σ_k + σ²I of the noisy z_k, given z_o (Eq. 37)."""
    return (
        _minus_square(latent.queries, latent.whitened_queries),
        _minus_square(latent.keys, latent.whitened_keys),
    )


def masked_cholesky(
    matrix: Float[Tensor, "batch heads tokens tokens"],
    mask: Bool[Tensor, "batch tokens"] | None,
    *,
    jitter: float | None,
) -> Float[Tensor, "batch heads tokens tokens"]:
    """Lower Cholesky factor in which padding is independent of all else.

    The covariance is zero where one token of a pair is padding. The jitter is relative, ``None``
    for machine epsilon, because these matrices have noise or a nugget on their diagonals already.
    """
    if mask is not None:
        # With the variance of a mean real token, padding leaves the jitter as it is.
        real = mask[:, None]
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        count = real.sum(-1)
        total = diagonal.masked_fill(~real, 0.0).sum(-1)
        mean = torch.where(count > 0, total / count.clamp(min=1), 1.0)
        matrix = matrix + torch.diag_embed((mean[..., None] - diagonal).masked_fill(real, 0.0))
    return safe_cholesky(matrix, jitter=torch.finfo(matrix.dtype).eps if jitter is None else jitter)


def plus_diagonal(
    matrix: Float[Tensor, "*batch n n"], value: float | Tensor
) -> Float[Tensor, "*batch n n"]:
    """Return the matrix with ``value`` added to its diagonal."""
    return matrix + value * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _kernels(
    tokens: tuple[Tensor, ...], pairs: Pairs, log_scales: tuple[Tensor, ...], mask: Tensor | None
) -> tuple[Tensor, ...]:
    """Kernel matrices of pairs of token sets, each scaled by the exponential of ``(H,)``."""
    both = None if mask is None else (mask[:, :, None] & mask[:, None, :])[:, None]
    scales = torch.stack(log_scales)[:, None, :, None, None]
    return canonical_kernels(torch.stack(tokens), scales, pairs, both).unbind(0)


def _minus_square(matrix: Tensor, root: Tensor | None) -> Tensor:
    """Return the matrix minus rootᵀ root."""
    return matrix if root is None else matrix - root.mT @ root
