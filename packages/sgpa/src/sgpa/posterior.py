r"""Decoupled sparse GP attention as functions of tensors (thesis Eqs. 3.14-3.17, B.11, B.14).

Both kernels of the papers are one: :math:`k(x, x') = d(x)\, d(x')\, e^{-\frac12 |a - a'|^2}` with
``a = x / lengthscale`` and the prior standard deviation ``d(x) = σ_f`` (RBF) or
``d(x) = σ_f exp(|a|²/2)`` (exponential: :math:`e^{a^\top a'}` is an RBF kernel times that). So the
Cholesky factor is that of a correlation matrix C with unit diagonal, :math:`L = D\,\mathrm{chol}(C
+ jI)`, and its jitter is relative to each input's own variance. In float32 the exponential kernel
is exact while |a|² stays below about 60, where its variance σ_f² exp(|a|²) nears the end of the
floating-point range anyway.

Shapes: H heads, B sequences, T tokens, M global inducing inputs, s head width. Tensors that depend
on the sequences are laid out ``(H, B, T, ...)``: what the M inducing inputs need is then one
product a head for the whole batch.

Notation: R is whitened, :math:`S_{g,d} = L R_d R_d^\top L^\top`; ``W = K_qg L^{-T}``;
:math:`v_g` is not whitened.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.gaussians import gauss_kl
from probseq.kernels.distances import scaled_squared_distance
from probseq.linalg import safe_cholesky, triangular_inverse
from probseq.transformers.functional import kernel_attention, rbf_matrix
from probseq.transformers.names import ATTENTION_JITTER, KernelName
from sgpa.quadratic import flush_subnormals, quadratic_forms

# Round-off, relative to the prior variance, can take a variance below zero by about this much.
_VARIANCE_FLOOR = 1e-10


class HeadKernel(NamedTuple):
    """Kernel hyperparameters of all heads."""

    name: KernelName
    lengthscale: Float[Tensor, "heads 1 dim"]
    outputscale: Float[Tensor, " heads"]  # σ_f²


class InducingTerms(NamedTuple):
    """All that depends on the global inducing inputs and not on the sequences; cached in eval."""

    centre: Float[Tensor, "heads 1 dim"]  # mean scaled inducing input, the origin for distances
    features: Float[Tensor, "heads inducing dim"]  # scaled and centred inducing inputs, float64
    whitener: Float[Tensor, "heads inducing inducing"]  # chol(C + jI)⁻¹, float64
    # Lᵀ v_g; None in the plain variant
    whitened_mean: Float[Tensor, "heads inducing channels"] | None
    factors: Float[Tensor, "heads channels inducing inducing"]  # R, lower triangular
    # The KL divergence that no sequence enters, summed over heads, in nats
    kl: Float[Tensor, ""]


class AttentionPosterior(NamedTuple):
    """Posterior of every head's output at every token, in units of the prior standard deviation."""

    mean: Float[Tensor, "heads batch tokens channels"]
    whitened: Float[Tensor, "heads batch tokens inducing"]  # W
    prior_deviation: Float[Tensor, "heads batch_or_1 tokens_or_1 1"]  # d(q)
    # The KL divergence that the sequences enter, summed over heads and output dimensions, averaged
    # over the batch, in nats
    kl: Float[Tensor, ""]


def factor_from_raw(
    raw: Float[Tensor, "heads channels inducing inducing"],
) -> Float[Tensor, "heads channels inducing inducing"]:
    """Lower triangular R with positive diagonal: the diagonal of ``raw`` holds its logarithm."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


def global_terms(
    inducing: Float[Tensor, "heads inducing dim"],
    kernel: HeadKernel,
    inducing_mean: Float[Tensor, "heads inducing channels"] | None,
    raw_factor: Float[Tensor, "heads channels inducing inducing"],
    *,
    jitter: float = ATTENTION_JITTER,
) -> InducingTerms:
    r"""Factorise the inducing inputs' covariance, once a head for the whole batch.

    The KL part, per head (B.11 with S whitened, K_gg's log-determinants cancel):

    .. math::
        \tfrac12\Big[\sum_d v_{g,d}^\top K_{gg} v_{g,d} + \sum_d \|R_d\|_F^2
        - 2 \sum_d \sum_m \log R_{d,mm} - M s\Big]
        = \sum_d \mathrm{KL}[N(L^\top v_{g,d}, R_d R_d^\top) \,\|\, N(0, I)],

    which :func:`~probseq.gaussians.gauss_kl` adds up from terms that are not negative. The inducing
    inputs k_g are projected; v_g, their mean, is ``None`` in the plain decoupled variant (B.14),
    which has no such term; the jitter is relative.
    """
    scaled = inducing / kernel.lengthscale
    centre = scaled.detach().mean(-2, keepdim=True)
    # In float64: where inducing inputs are nearly alike, the inverse of chol(C + jI) multiplies
    # round-off of C by up to 1/√j.
    features = scaled.double() - centre
    # L = D chol(C + jI).
    cholesky = safe_cholesky(correlation_matrix(features), jitter=jitter)
    whitener = flush_subnormals(triangular_inverse(cholesky))
    # R_d.
    factors = factor_from_raw(raw_factor)
    # Lᵀ v_g = chol(C + jI)ᵀ D v_g.
    whitened_mean = None
    if inducing_mean is not None:
        scaled_mean = prior_scale(scaled, kernel) * inducing_mean
        whitened_mean = cholesky.mT.to(inducing_mean.dtype) @ scaled_mean
    # Σ_d KL[N(Lᵀ v_g,d, R_d R_dᵀ) ‖ N(0, I)].
    means = torch.zeros_like(factors[..., 0]) if whitened_mean is None else whitened_mean.mT
    kl = gauss_kl(means, factors).sum()
    return InducingTerms(centre, features, whitener, whitened_mean, factors, kl)


def attention_posterior(
    queries: Float[Tensor, "heads batch tokens dim"],
    values: Float[Tensor, "heads batch tokens channels"],
    kernel: HeadKernel,
    terms: InducingTerms,
    mask: Bool[Tensor, "batch tokens"] | None = None,
) -> AttentionPosterior:
    r"""Posterior mean (3.15, first line) and what its variance is made of.

    .. math::
        m = K_{qq} v_a + W (L^\top v_g - W^\top v_a)

    or the plain decoupled mean :math:`K_{qq} v_a` (B.14). The KL part, per head and sequence:

    .. math::
        \tfrac12 \sum_d \big[v_{a,d}^\top K_{qq} v_{a,d} - \|W^\top v_{a,d}\|^2\big]
        = \tfrac12 \sum_d v_{a,d}^\top B v_{a,d}, \quad B = K_{qq} - W W^\top,

    without the second term in the plain variant, whose B is :math:`K_{qq}`. Queries are q = k_a,
    not yet divided by the lengthscale, values are v_a. Padding, where the mask is false, enters
    neither the mean of other tokens nor the KL.
    """
    # a = q/ℓ and d(q); K_qq = D C D with C = exp(-½|a - a'|²), D = diag d(q). From here on all is
    # over d(q): K_qq v_a is C v with v = D v_a, and W is C_qg chol(C_gg + jI)⁻ᵀ.
    scaled = queries / kernel.lengthscale[:, None]
    scale = prior_scale(scaled, kernel)
    # v = D v_a, zero at padding.
    v = scale * values
    if mask is not None:
        v = v.masked_fill(~mask[None, :, :, None], 0.0)
    # C v.
    smoothed = kernel_attention(
        scaled, scaled, v, kernel="rbf", key_mask=None if mask is None else mask[None]
    )
    # W.
    whitened = whiten(scaled - terms.centre[:, None], terms)
    if terms.whitened_mean is None:
        # B v = C v, and m = B v.
        mean = residual = smoothed
    else:
        # B v = C v - W Wᵀ v, and m = B v + W Lᵀ v_g.
        residual = smoothed - whitened @ (whitened.mT @ v)
        mean = residual + whitened @ terms.whitened_mean[:, None]
    # ½ Σ_d v_dᵀ B v_d, averaged over the batch.
    kl = 0.5 * _quadratic_form(v, residual, mask).sum() / v.shape[1]
    return AttentionPosterior(mean, whitened, scale, kl)


def whiten(
    centred: Float[Tensor, "heads batch tokens dim"], terms: InducingTerms
) -> Float[Tensor, "heads batch tokens inducing"]:
    r"""Return W = C(q, Z) chol(C(Z, Z) + jI)⁻ᵀ, in float64 up to the last step."""
    # One product a head for the whole batch.
    rows = rearrange(centred, "h b t d -> h (b t) d").double()
    whitened = (rbf_matrix(rows, terms.features) @ terms.whitener.mT).to(centred.dtype)
    return rearrange(whitened, "h (b t) m -> h b t m", b=centred.shape[1])


def _quadratic_form(v: Tensor, residual: Tensor, mask: Tensor | None) -> Tensor:
    """Return vᵀBv from v and Bv, ``(H, B, s)``, for a covariance B with variances of at most one.

    Where the inducing inputs know nearly all that the tokens say, Bv is little more than round-off,
    and its product with v may come out negative. But B has no eigenvalue below zero or above its
    trace, which is at most T, so that vᵀBv ≥ |Bv|²/T, a sum of squares: the larger of the two is
    nearer to the truth, and never negative. But for round-off it is the product.
    """
    if mask is not None:
        residual = residual.masked_fill(~mask[None, :, :, None], 0.0)
    bound = residual.square().sum(-2) / residual.shape[-2]
    return torch.maximum((v * residual).sum(-2), bound)


def relative_variance(
    whitened: Float[Tensor, "heads batch tokens inducing"],
    factors: Float[Tensor, "heads channels inducing inducing"],
) -> Float[Tensor, "heads batch tokens channels"]:
    r"""Diagonal of the posterior covariance (3.15, second line) over the prior variance.

    .. math:: \Sigma_{d,tt} / k(q_t, q_t) = 1 - \|w_t\|^2 + \|R_d^\top w_t\|^2

    with :math:`w_t` a row of ``whitened``. Clamped for round-off only.
    """
    rows = rearrange(whitened, "h b t m -> h (b t) m")
    relative = (1.0 + quadratic_forms(rows, factors)).clamp(min=_VARIANCE_FLOOR)
    return rearrange(relative, "h (b t) c -> h b t c", b=whitened.shape[1])


def residual_deviation(
    whitened: Float[Tensor, "*b tokens inducing"],
) -> Float[Tensor, "*b tokens 1"]:
    r"""Return the deviation :math:`\sqrt{1 - \|w_t\|^2}` that inducing inputs leave open.

    It is over the prior's, and clamped for round-off only.
    """
    return (1.0 - whitened.square().sum(-1, keepdim=True)).clamp(min=_VARIANCE_FLOOR).sqrt()


def residual_cholesky(
    queries: Float[Tensor, "heads batch tokens dim"],
    kernel: HeadKernel,
    posterior: AttentionPosterior,
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float = ATTENTION_JITTER,
) -> Float[Tensor, "heads batch tokens tokens"]:
    r"""Cholesky factor of :math:`K_{qq} - W W^\top`, over the prior standard deviation.

    All output dimensions share it, so that a sample from the full covariance costs one T×T
    factorisation a head and sequence:
    :math:`f_d = m_d + \mathrm{chol}(K_{qq} - WW^\top)\,\epsilon + W R_d\,\epsilon'`.
    Padding is independent of all else; the jitter is relative to the prior variance.
    """
    scaled = queries / kernel.lengthscale[:, None]
    # C - W Wᵀ.
    whitened = flush_subnormals(posterior.whitened)
    residual = correlation_matrix(scaled) - whitened @ whitened.mT
    eye = torch.eye(residual.shape[-1], dtype=residual.dtype, device=residual.device)
    if mask is not None:
        # With the variance of a mean real token, padding leaves the jitter as it is.
        variances = residual.diagonal(dim1=-2, dim2=-1).masked_fill(~mask, 0.0)
        variance = variances.sum(-1) / mask.sum(-1).clamp(min=1)
        both = (mask[:, :, None] & mask[:, None, :])[None]
        residual = torch.where(both, residual, variance[..., None, None] * eye)
    # The difference may be as small as round-off; the jitter's measure is the prior, not itself.
    return safe_cholesky(residual + jitter * eye, jitter=jitter)


def correlation_matrix(scaled: Float[Tensor, "*b n dim"]) -> Float[Tensor, "*b n n"]:
    r"""Correlations :math:`\exp(-\tfrac12 |a_i - a_j|^2)` of inputs, exact enough to factorise.

    Summed differences: at short lengthscales the expansion of the square loses so many digits in
    float32 that two equal inputs make the matrix indefinite beyond any jitter.

    Inputs are divided by the lengthscales.
    """
    unit = torch.ones_like(scaled[..., :1, :])
    return flush_subnormals(
        torch.exp(-0.5 * scaled_squared_distance(scaled, scaled, unit, exact=True))
    )


def prior_scale(scaled: Tensor, kernel: HeadKernel) -> Tensor:
    """Prior standard deviation d(x), ``(H, ..., 1)``, axes of 1 where it is constant."""
    # σ_f, times exp(½|a|²) for the exponential kernel.
    sigma = kernel.outputscale.sqrt()
    sigma = sigma.reshape(-1, *(1,) * (scaled.ndim - 1))
    if kernel.name == "rbf":
        return sigma
    return sigma * torch.exp(0.5 * scaled.square().sum(-1, keepdim=True))
