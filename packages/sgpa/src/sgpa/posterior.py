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

from probseq.kernels.distances import scaled_squared_distance
from probseq.linalg import safe_cholesky, triangular_inverse
from probseq.transformers.functional import KernelName, kernel_attention, rbf_matrix
from sgpa.quadratic import flush, quadratic_forms

# Round-off, relative to the prior variance, can take a variance below zero by about this much.
_VARIANCE_FLOOR = 1e-10


class HeadKernel(NamedTuple):
    """Kernel hyperparameters of all heads.

    Attributes:
        name: ``"rbf"`` or ``"exponential"``.
        lengthscale: ``(H, 1, s)``.
        outputscale: σ_f², ``(H,)``.
    """

    name: KernelName
    lengthscale: Float[Tensor, "heads 1 dim"]
    outputscale: Float[Tensor, " heads"]


class GlobalTerms(NamedTuple):
    """All that depends on the global inducing inputs and not on the sequences; cached in eval mode.

    Attributes:
        centre: mean scaled inducing input, the origin for squared distances, ``(H, 1, s)``.
        features: scaled and centred inducing inputs, ``(H, M, s)``.
        whitener: inverse Cholesky factor of the inducing inputs' correlation matrix, ``(H, M, M)``.
        mean: whitened inducing mean Lᵀ v_g, ``(H, M, s)``; ``None`` in the plain variant.
        factors: R, lower triangular, ``(H, s, M, M)``.
        kl: the part of the KL divergence that no sequence enters, summed over heads, in nats.
    """

    centre: Float[Tensor, "heads 1 dim"]
    features: Float[Tensor, "heads inducing dim"]
    whitener: Float[Tensor, "heads inducing inducing"]
    mean: Float[Tensor, "heads inducing channels"] | None
    factors: Float[Tensor, "heads channels inducing inducing"]
    kl: Float[Tensor, ""]


class AttentionPosterior(NamedTuple):
    """Posterior of every head's output at every token, in units of the prior standard deviation.

    Attributes:
        mean: posterior mean over ``scale``, ``(H, B, T, s)``.
        whitened: W over ``scale``, ``(H, B, T, M)``.
        scale: prior standard deviation d(q), broadcastable to ``(H, B, T, 1)``.
        kl: the part of the KL divergence in which the sequences enter, summed over heads and
            output dimensions, averaged over the batch, in nats.
    """

    mean: Float[Tensor, "heads batch tokens channels"]
    whitened: Float[Tensor, "heads batch tokens inducing"]
    scale: Float[Tensor, "heads batch_or_1 tokens_or_1 1"]
    kl: Float[Tensor, ""]


def factor_from_raw(
    raw: Float[Tensor, "heads channels inducing inducing"],
) -> Float[Tensor, "heads channels inducing inducing"]:
    """Lower triangular R with positive diagonal: the diagonal of ``raw`` holds its logarithm."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


def global_terms(
    inducing: Float[Tensor, "heads inducing dim"],
    kernel: HeadKernel,
    mean: Float[Tensor, "heads inducing channels"] | None,
    raw_factor: Float[Tensor, "heads channels inducing inducing"],
    *,
    jitter: float | None = None,
) -> GlobalTerms:
    r"""Factorise the inducing inputs' covariance, once a head for the whole batch.

    The KL part, per head (B.11 with S whitened, K_gg's log-determinants cancel):

    .. math::
        \tfrac12\Big[\sum_d v_{g,d}^\top K_{gg} v_{g,d} + \sum_d \|R_d\|_F^2
        - 2 \sum_d \sum_m \log R_{d,mm} - M s\Big].

    Args:
        inducing: projected global inducing inputs k_g.
        kernel: hyperparameters.
        mean: v_g, or ``None`` for the plain decoupled variant (B.14), which has no such term.
        raw_factor: see :func:`factor_from_raw`.
        jitter: relative jitter of the Cholesky factor; ``None`` for the dtype's default.

    Raises:
        CholeskyError: the covariance of the inducing inputs cannot be factorised.
    """
    scaled = inducing / kernel.lengthscale
    centre = scaled.detach().mean(-2, keepdim=True)
    features = scaled - centre
    cholesky = safe_cholesky(correlation_matrix(features), jitter=jitter)
    factors = factor_from_raw(raw_factor)
    log_diagonal = raw_factor.diagonal(dim1=-2, dim2=-1)
    twice_kl = factors.square().sum() - 2.0 * log_diagonal.sum() - log_diagonal.numel()
    whitened_mean = None
    if mean is not None:
        whitened_mean = cholesky.mT @ (prior_scale(scaled, kernel) * mean)
        twice_kl = twice_kl + whitened_mean.square().sum()
    whitener = flush(triangular_inverse(cholesky))
    return GlobalTerms(centre, features, whitener, whitened_mean, factors, 0.5 * twice_kl)


def attention_posterior(
    queries: Float[Tensor, "heads batch tokens dim"],
    values: Float[Tensor, "heads batch tokens channels"],
    kernel: HeadKernel,
    terms: GlobalTerms,
    mask: Bool[Tensor, "batch tokens"] | None = None,
) -> AttentionPosterior:
    r"""Posterior mean (3.15, first line) and what its variance is made of.

    .. math::
        m = K_{qq} v_a + W (L^\top v_g - W^\top v_a)

    or, if ``terms.mean`` is ``None``, the plain decoupled mean :math:`K_{qq} v_a` (B.14). The KL
    part, per head and sequence:

    .. math::
        \tfrac12 \sum_d \big[v_{a,d}^\top K_{qq} v_{a,d} - \|W^\top v_{a,d}\|^2\big],

    without the second term in the plain variant.

    Args:
        queries: q = k_a, not yet divided by the lengthscale.
        values: v_a.
        kernel: hyperparameters.
        terms: see :func:`global_terms`.
        mask: true at real tokens; padding enters neither the mean of other tokens nor the KL.
    """
    scaled = queries / kernel.lengthscale[:, None]
    scale = prior_scale(scaled, kernel)
    values = scale * values
    if mask is not None:
        values = values.masked_fill(~mask[None, :, :, None], 0.0)
    # The unit-variance part of both kernels is RBF: K v = d ∘ C (d ∘ v).
    mean = kernel_attention(
        scaled, scaled, values, kernel="rbf", key_mask=None if mask is None else mask[None]
    )
    twice_kl = (values * mean).sum()
    rows = rearrange(scaled, "h b t d -> h (b t) d") - terms.centre
    whitened = rbf_matrix(rows, terms.features) @ terms.whitener.mT
    whitened = rearrange(whitened, "h (b t) m -> h b t m", b=values.shape[1])
    if terms.mean is not None:
        projected = whitened.mT @ values
        twice_kl = twice_kl - projected.square().sum()
        mean = mean + whitened @ (terms.mean[:, None] - projected)
    return AttentionPosterior(mean, whitened, scale, 0.5 * twice_kl / values.shape[1])


def relative_variance(
    posterior: AttentionPosterior, factors: Float[Tensor, "heads channels inducing inducing"]
) -> Float[Tensor, "heads batch tokens channels"]:
    r"""Diagonal of the posterior covariance (3.15, second line) over the prior variance.

    .. math:: \Sigma_{d,tt} / k(q_t, q_t) = 1 - \|w_t\|^2 + \|R_d^\top w_t\|^2

    with :math:`w_t` the row of ``posterior.whitened``. Clamped for round-off only.
    """
    rows = rearrange(posterior.whitened, "h b t m -> h (b t) m")
    relative = (1.0 + quadratic_forms(rows, factors)).clamp(min=_VARIANCE_FLOOR)
    return rearrange(relative, "h (b t) c -> h b t c", b=posterior.whitened.shape[1])


def residual_cholesky(
    queries: Float[Tensor, "heads batch tokens dim"],
    kernel: HeadKernel,
    posterior: AttentionPosterior,
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float | None = None,
) -> Float[Tensor, "heads batch tokens tokens"]:
    r"""Cholesky factor of :math:`K_{qq} - W W^\top`, over the prior standard deviation.

    All output dimensions share it, so that a sample from the full covariance costs one T×T
    factorisation a head and sequence:
    :math:`f_d = m_d + \mathrm{chol}(K_{qq} - WW^\top)\,\epsilon + W R_d\,\epsilon'`.

    Args:
        queries: q = k_a, not yet divided by the lengthscale.
        kernel: hyperparameters.
        posterior: see :func:`attention_posterior`.
        mask: true at real tokens; padding is independent of all else.
        jitter: jitter relative to the prior variance; ``None`` for the dtype's default.

    Raises:
        CholeskyError: the covariance cannot be factorised.
    """
    scaled = queries / kernel.lengthscale[:, None]
    whitened = flush(posterior.whitened)
    residual = correlation_matrix(scaled) - whitened @ whitened.mT
    eye = torch.eye(residual.shape[-1], dtype=residual.dtype, device=residual.device)
    if mask is not None:
        # With the variance of a mean real token, padding leaves the jitter as it is.
        variances = residual.diagonal(dim1=-2, dim2=-1).masked_fill(~mask, 0.0)
        variance = variances.sum(-1) / mask.sum(-1).clamp(min=1)
        both = (mask[:, :, None] & mask[:, None, :])[None]
        residual = torch.where(both, residual, variance[..., None, None] * eye)
    # The difference may be as small as round-off; the jitter's measure is the prior, not itself.
    floor = torch.finfo(residual.dtype).eps * 10.0 if jitter is None else jitter
    return safe_cholesky(residual + floor * eye)


def correlation_matrix(scaled: Float[Tensor, "*b n dim"]) -> Float[Tensor, "*b n n"]:
    r"""Correlations :math:`\exp(-\tfrac12 |a_i - a_j|^2)` of inputs, exact enough to factorise.

    Summed differences: at short lengthscales the expansion of the square loses so many digits in
    float32 that two equal inputs make the matrix indefinite beyond any jitter.

    Args:
        scaled: inputs, divided by the lengthscales.
    """
    unit = torch.ones_like(scaled[..., :1, :])
    return flush(torch.exp(-0.5 * scaled_squared_distance(scaled, scaled, unit, exact=True)))


def prior_scale(scaled: Tensor, kernel: HeadKernel) -> Tensor:
    """Prior standard deviation d(x), ``(H, ..., 1)``, axes of 1 where it is constant."""
    sigma = kernel.outputscale.sqrt()
    sigma = sigma.reshape(-1, *(1,) * (scaled.ndim - 1))
    if kernel.name == "rbf":
        return sigma
    return sigma * torch.exp(0.5 * scaled.square().sum(-1, keepdim=True))
