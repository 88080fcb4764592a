r"""Log densities that CGPT is regularised with (Eqs. 26-44), exact, per head and sequence.

All evaluate z_q at the attention output ν and the noisy z_k at the observations
:math:`z_k = (K_k + \sigma^2 I) V`, sum over output dimensions, and count real tokens only. A nugget
on the covariance of z_q bounds them: without one they grow without limit as the prediction becomes
certain.

Corrections to the paper: (27) splits log E[p(z_q|z_o) p(z_k|z_o)] into a sum of two logarithms,
which is another number (``"marginals"``; ``"joint"`` is the one that 26 asks for); the bound of
(38-43) has a closed form, so nothing is sampled (``"jensen"``), its (41) has the sign of log 2π
wrong, and (44) lacks a factor ½; z_k is noisy in all of them, as it is where ν comes from.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.covariances import JointCovariance, plus_diagonal
from cgpt.densities import block_log_density, expected_log_density


def joint_log_density(
    joint: JointCovariance,
    mean: Float[Tensor, "batch heads tokens channels"],
    observations: Float[Tensor, "batch heads tokens channels"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    nugget: float,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads"]:
    r"""Compute :math:`\log \mathcal{N}([\nu; z_k]; 0, C)`, what Eq. 26 asks for.

    Args:
        joint: C, from :func:`~cgpt.covariances.density_joint`.
        mean: ν, zero at padding.
        observations: z_k, zero at padding.
        mask: true at real tokens.
        nugget: added to the variances of z_q.
        jitter: relative jitter of Cholesky factors; ``None`` for machine epsilon.

    Raises:
        CholeskyError: a covariance cannot be factorised.
    """
    queries = plus_diagonal(joint.queries, nugget)
    return block_log_density(
        queries, joint.cross, joint.keys, mean, observations, mask, jitter=jitter
    )


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

    Arguments and errors are those of :func:`joint_log_density`; the joint's cross-covariance is not
    used.
    """
    queries = plus_diagonal(joint.queries, nugget)
    return expected_log_density(queries, None, mean, mask, jitter=jitter) + expected_log_density(
        joint.keys, None, observations, mask, jitter=jitter
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

    and the same for the keys, with Σ_k + σ²I; :math:`G P G^\top` is Cov(z_q) − Σ_q.

    Arguments and errors are those of :func:`marginals_log_density`; ``conditionals`` are those of
    :func:`~cgpt.covariances.conditional_covariances`.
    """
    total = torch.zeros((), dtype=mean.dtype, device=mean.device)
    for conditional, covariance, values, added in (
        (conditionals[0], joint.queries, mean, nugget),
        (conditionals[1], joint.keys, observations, 0.0),
    ):
        total = total + expected_log_density(
            plus_diagonal(conditional, added), covariance - conditional, values, mask, jitter=jitter
        )
    return total
