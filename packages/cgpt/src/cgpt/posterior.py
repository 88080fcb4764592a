r"""Predictive distribution of the queries' process given the keys' (CGPT, Eqs. 22-25 and 45-52)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.covariances import JointCovariance, masked_cholesky
from probseq.gaussians import standard_normal

# Round-off of a predictive covariance in float32, a difference, relative to the prior's variance:
# where the keys determine the queries, nothing else would be left to factorise. It is the same in
# float64, whose draws would have another distribution otherwise.
_FLOOR = 1e-5


def predictive_mean(
    joint: JointCovariance, values: Float[Tensor, "batch heads tokens channels"]
) -> Float[Tensor, "batch heads tokens channels"]:
    r"""Mean :math:`\nu = K_{qo} A K_{ok} V` (Eq. 25), or :math:`K_{qk} V` if it is exact.

    The observations are chosen as :math:`Z = (K_k + \sigma^2 I) V`, so that the inverse in
    :math:`\mathrm{Cov}(z_q, z_k) (K_k + \sigma^2 I)^{-1} Z` cancels.
    """
    return joint.cross @ values


def predictive_covariance(
    joint: JointCovariance,
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float | None = None,
) -> Float[Tensor, "batch heads tokens tokens"]:
    r"""Covariance of z_q given z_k, the same for all output dimensions (Eqs. 45-52).

    .. math:: V = K_q - \sigma^2 G G^\top - G K_{ok} (K_k + \sigma^2 I)^{-1} K_{ko} G^\top

    where the second term is there with a noise-free p(z_o) only. It does not depend on the values.

    The jitter is relative, ``None`` for machine epsilon.
    """
    # G K_ok L⁻ᵀ with L Lᵀ = K_k + σ²I.
    root = masked_cholesky(joint.keys, mask, jitter=jitter)
    whitened = torch.linalg.solve_triangular(root, joint.cross.mT, upper=False)
    return joint.queries - whitened.mT @ whitened


def draw_samples(
    mean: Float[Tensor, "batch heads tokens channels"],
    covariance: Float[Tensor, "batch heads tokens tokens"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    num_samples: int,
    prior_variance: Float[Tensor, " heads"],
    jitter: float | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "samples batch heads tokens channels"]:
    r"""Draw exact joint samples :math:`\nu + \mathrm{chol}(V)\,\epsilon`, one factor for all.

    The prior variance of each head, σ_q², is the measure of V's round-off; the jitter is relative,
    ``None`` for machine epsilon.
    """
    floor = _FLOOR * prior_variance[:, None, None]
    eye = torch.eye(mean.shape[-2], dtype=mean.dtype, device=mean.device)
    root = masked_cholesky(covariance + floor * eye, mask, jitter=jitter)
    noise = standard_normal((num_samples, *mean.shape), like=mean, generator=generator)
    return mean + root @ noise
