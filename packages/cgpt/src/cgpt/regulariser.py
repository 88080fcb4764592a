r"""Log densities that CGPT is regularised with (Eqs. 26-44), exact, per head and sequence.

All evaluate z_q at the attention output ν and the noisy z_k at the observations
:math:`z_k = (K_k + \sigma^2 I) V`, sum over output dimensions, and count real tokens only. A nugget
on the covariance of z_q bounds them: without one they grow without limit as the prediction becomes
certain.

Corrections to the paper: (27) splits log E[p(z_q|z_o) p(z_k|z_o)] into a sum of two logarithms,
which is another number (``"marginals"``; ``"joint"`` is the one that 26 asks for); the bound of
(38-43) has a closed form, so nothing is sampled (``"jensen"``), its (41) has the sign of log 2π
wrong, and (44) lacks a factor ½; z_k is noisy in all of them, as it is where ν comes from.

Covariances are zero where one token of a pair is padding, means and observations at padding; the
mask is true at real tokens. Jitter is relative, ``None`` for machine epsilon.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.covariances import JointCovariance, masked_cholesky, plus_diagonal
from probseq.linalg import triangular_inverse


def joint_log_density(
    joint: JointCovariance,
    mean: Float[Tensor, "batch heads tokens channels"],
    observations: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    nugget: float,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Compute :math:`\log \mathcal{N}([\nu; z_k]; 0, C)`, which Eq. 26 asks for.

    C is that of :func:`~cgpt.covariances.density_joint`, with the nugget added to the variances of
    z_q.
    """
    # p(z): L Lᵀ = C_kk and L⁻¹ z; products with inverse factors are cheaper than triangular solves.
    root = masked_cholesky(joint.keys, mask, jitter=jitter)
    inverse = triangular_inverse(root)
    gain, whitened_keys = inverse @ joint.cross.mT, inverse @ observations
    # p(ν | z): the Schur complement C_qq − C_qk C_kk⁻¹ C_kq, and ν less C_qk C_kk⁻¹ z, whitened.
    schur = plus_diagonal(joint.queries, nugget) - gain.mT @ gain
    schur_root = masked_cholesky(schur, mask, jitter=jitter)
    whitened = triangular_inverse(schur_root) @ (mean - gain.mT @ whitened_keys)
    return _log_normal(root, whitened_keys, mask) + _log_normal(schur_root, whitened, mask)


def marginals_log_density(
    joint: JointCovariance,
    mean: Float[Tensor, "batch heads tokens channels"],
    observations: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    nugget: float,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Compute :math:`\log p(\nu) + \log p(z_k)`, the sum that Eqs. 27 and 36 write down.

    Arguments are those of :func:`joint_log_density`.
    """
    queries = plus_diagonal(joint.queries, nugget)
    return _expected_log_density(queries, None, mean, mask, jitter) + _expected_log_density(
        joint.keys, None, observations, mask, jitter
    )


def jensen_bound(
    joint: JointCovariance,
    conditionals: tuple[Tensor, Tensor],
    mean: Float[Tensor, "batch heads tokens channels"],
    observations: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    nugget: float,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Jensen's lower bound of :func:`marginals_log_density` (Eqs. 38-43) in closed form.

    .. math::
        E_{z_o} \log \mathcal{N}(\nu; G z_o, \Sigma_q) = -\tfrac12 [\nu^\top \Sigma_q^{-1} \nu
        + \mathrm{tr}(\Sigma_q^{-1} G P G^\top) + \log|\Sigma_q| + n \log 2\pi]

    and the same for the keys, with Σ_k + σ²I; :math:`G P G^\top` is Cov(z_q) − Σ_q. The
    ``conditionals`` are those of :func:`~cgpt.covariances.conditional_covariances`, other arguments
    those of :func:`joint_log_density`.
    """
    total = torch.zeros((), dtype=mean.dtype, device=mean.device)
    for conditional, covariance, values, added in (
        (conditionals[0], joint.queries, mean, nugget),
        (conditionals[1], joint.keys, observations, 0.0),
    ):
        total = total + _expected_log_density(
            plus_diagonal(conditional, added), covariance - conditional, values, mask, jitter
        )
    return total


def _expected_log_density(
    covariance: Tensor,
    spread: Tensor | None,
    values: Tensor,
    mask: Tensor | None,
    jitter: float | None,
) -> Tensor:
    r"""Return Σ_d E log N(z_d; μ, C) over means μ ~ N(0, D); without spread, D = 0."""
    root = masked_cholesky(covariance, mask, jitter=jitter)
    inverse = triangular_inverse(root)
    density = _log_normal(root, inverse @ values, mask)
    if spread is None:
        return density
    # -½ tr(C⁻¹ D) = -½ tr(L⁻¹ D L⁻ᵀ) for each output dimension.
    trace = ((inverse @ spread) * inverse).sum((-2, -1))
    return density - 0.5 * values.shape[-1] * trace


def _log_normal(root: Tensor, whitened: Tensor, mask: Tensor | None) -> Tensor:
    """Sum over channels of the log density of values that the Cholesky factor has whitened."""
    # Per token: log of the factor's diagonal, and half of log 2π.
    logs = root.diagonal(dim1=-2, dim2=-1).log() + 0.5 * math.log(2.0 * math.pi)
    if mask is not None:
        logs = logs.masked_fill(~mask[:, None], 0.0)
    return -0.5 * whitened.square().sum((-2, -1)) - whitened.shape[-1] * logs.sum(-1)
