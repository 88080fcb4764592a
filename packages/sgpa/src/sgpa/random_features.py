r"""Sparse GP attention whose kernel has a finite number of features: linear in the tokens.

Not in the papers. With r random Fourier features and orthogonal frequencies (the rows of a block of
Ω are orthogonal, and as long as those of a Gaussian matrix), over inputs a = x / lengthscale,

.. math::
    \phi(x) = \sqrt{2/r}\, [\cos \Omega a; \sin \Omega a], \quad |\phi(x)| = 1,

the correlation is :math:`\phi(x)^\top \phi(x')`: a Gaussian process of rank r in its own right,
near the RBF kernel's for many features. All covariances come from the same features: with the exact
:math:`K_{qg}` beside them variances would be negative.

With the thin factorisation :math:`\phi(Z)^\top = Q U`, U upper triangular with a positive diagonal,
:math:`U^\top` is the Cholesky factor of the inducing inputs' covariance, without jitter, and
:math:`w_t = Q^\top \phi(q_t)`. One r × s matrix a sequence holds all that its tokens say:

.. math::
    S = \sum_j \phi(k_j) v_j^\top, \quad
    m_t = \phi(q_t)^\top [(I - QQ^\top) S + Q c], \quad
    \mathrm{KL} = \tfrac12 |(I - QQ^\top) S|^2 + \text{the global part}

with :math:`c = U v_g` for values over the prior standard deviation. A sample of the whole function
is one random matrix more, exact and as cheap as the mean:

.. math::
    F_t = m_t + \phi(q_t)^\top [(I - QQ^\top) \epsilon + Q R_d \epsilon'_d].

Shapes and letters as in :mod:`sgpa.posterior`; r features.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.gaussians import gauss_kl
from sgpa.posterior import (
    AttentionPosterior,
    HeadKernel,
    InducingTerms,
    factor_from_raw,
    prior_scale,
)


def orthogonal_frequencies(
    count: int, dim: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, "count dim"]:
    """Draw frequencies whose rows are orthogonal in blocks, each as long as a Gaussian row.

    Each row has the law of a standard normal vector.
    """
    blocks = -(-count // dim)
    gaussian = torch.randn(2, blocks, dim, dim, generator=generator)
    # Uniform over rotations, with reflections: the signs of a QR are those of its convention.
    directions, upper = torch.linalg.qr(gaussian[0])
    directions = directions * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    rows = directions.mT * gaussian[1].norm(dim=-1, keepdim=True)
    return rearrange(rows, "block row dim -> (block row) dim")[:count]


def features(
    scaled: Float[Tensor, "*b n dim"], frequencies: Float[Tensor, "*c count dim"]
) -> Float[Tensor, "*b n features"]:
    r"""Compute :math:`\sqrt{2/r} [\cos \Omega a; \sin \Omega a]`, vectors of length 1.

    Args:
        scaled: inputs a over the lengthscales.
        frequencies: Ω.
    """
    angles = scaled @ frequencies.mT
    return torch.cat([angles.cos(), angles.sin()], -1) / math.sqrt(frequencies.shape[-2])


def feature_terms(
    inducing: Float[Tensor, "heads inducing dim"],
    kernel: HeadKernel,
    mean: Float[Tensor, "heads inducing channels"] | None,
    raw_factor: Float[Tensor, "heads channels inducing inducing"],
    frequencies: Float[Tensor, "heads count dim"],
) -> InducingTerms:
    """Factorise the inducing inputs' features; see :func:`sgpa.posterior.global_terms`.

    Returns:
        Terms whose ``whitener`` is Qᵀ, ``(H, M, r)``, and whose ``features`` are φ(Z).
    """
    scaled = inducing / kernel.lengthscale
    # Covariances do not depend on the centre, but a draw of one function's features does.
    centre = scaled.mean(-2, keepdim=True)
    phi = features(scaled - centre, frequencies)
    # φ(Z)ᵀ = Q U with diag U > 0, so that Uᵀ = chol K_gg; in float64, because columns of inputs
    # that are nearly alike leave round-off of Q to decide.
    basis, upper = torch.linalg.qr(features((scaled - centre).double(), frequencies.double()).mT)
    signs = upper.diagonal(dim1=-2, dim2=-1).sign()
    signs = torch.where(signs == 0, torch.ones_like(signs), signs)
    basis = (basis * signs[:, None]).to(phi.dtype)
    upper = (signs[..., None] * upper).to(phi.dtype)
    # R_d.
    factors = factor_from_raw(raw_factor)
    # c = Lᵀ v_g = U D v_g.
    whitened_mean = None if mean is None else upper @ (prior_scale(scaled, kernel) * mean)
    # Σ_d KL[N(c_d, R_d R_dᵀ) ‖ N(0, I)].
    means = torch.zeros_like(factors[..., 0]) if whitened_mean is None else whitened_mean.mT
    kl = gauss_kl(means, factors).sum()
    return InducingTerms(centre, phi, basis.mT, whitened_mean, factors, kl)


def feature_posterior(
    queries: Float[Tensor, "heads batch tokens dim"],
    values: Float[Tensor, "heads batch tokens channels"],
    kernel: HeadKernel,
    frequencies: Float[Tensor, "heads count dim"],
    terms: InducingTerms,
    mask: Bool[Tensor, "batch tokens"] | None = None,
) -> AttentionPosterior:
    """Compute mean and W from features; see :func:`sgpa.posterior.attention_posterior`.

    Arguments are those of :func:`sgpa.posterior.attention_posterior`, terms those of
    :func:`feature_terms`.
    """
    # a = q/ℓ and d(q); all is over d(q), as there.
    scaled = queries / kernel.lengthscale[:, None]
    scale = prior_scale(scaled, kernel)
    # v = D v_a, zero at padding.
    values = scale * values
    if mask is not None:
        values = values.masked_fill(~mask[None, :, :, None], 0.0)
    phi = features(scaled - terms.centre[:, None], frequencies[:, None])
    # W = φ Q.
    whitened = phi @ terms.whitener.mT[:, None]
    # S = Σ_j φ(k_j) v_jᵀ.
    state = phi.mT @ values
    # (I − QQᵀ) S, or S in the plain variant.
    if terms.mean is not None:
        state = unspanned(state, terms)
    # ½ |(I − QQᵀ) S|², averaged over the batch.
    kl = 0.5 * state.square().sum() / values.shape[1]
    # m = φᵀ (I − QQᵀ) S + W c.
    mean = phi @ state
    if terms.mean is not None:
        mean = mean + whitened @ terms.mean[:, None]
    return AttentionPosterior(mean, whitened, scale, kl)


def unspanned(
    state: Float[Tensor, "*s heads batch width channels"], terms: InducingTerms
) -> Float[Tensor, "*s heads batch width channels"]:
    """Return (I − QQᵀ) B: what the inducing inputs' features do not span."""
    basis = terms.whitener[:, None]
    return state - basis.mT @ (basis @ state)
