r"""The regulariser of SCGPT: log-densities of ν and z_k in closed form (CGPT paper, appendix E).

Given the canonical process, both outputs are low-rank Gaussians in whitened coordinates (see
:mod:`cgpt.sparse`): with :math:`\Phi = [A, C]`, :math:`D` = σ²I + the diagonal blocks of
:math:`\Phi^\top \Phi` and :math:`U = \mathrm{diag}(W_q, W_k)`,

.. math::
    (z_q, z_k) \mid z_o \sim N(U D^{-1} \Phi^\top z_o,\; \sigma^2 I + \sigma^2 U D^{-1} U^\top),

which is :math:`N(G z_o, \sigma^2 I + K_{qm} P K_{mq})` with :math:`G = \sigma^{-2} K_{qm} P K_{mo}`
for the queries, and for the keys the same through the l-set. With :math:`z_o \sim N(0, K_{oo})`

.. math::
    (z_q, z_k) \sim N(0, \sigma^2 I + U \Omega U^\top), \quad
    \Omega = D^{-1} (\sigma^2 D + \Phi^\top K_{oo} \Phi) D^{-1}
    = X (\sigma^2 I + X^\top \Phi^\top K_{oo} \Phi X) X^\top, \quad X X^\top = D^{-1}.

The last form keeps its digits in float32: of the sum in the first one, entries grow as T² beside a
floor of σ⁴.

:math:`K_{oo}` is the exact kernel matrix, as in the paper, and not a low-rank copy of it: only the
sum above is needed, made tile by tile in O(T) memory, though in O(T²) time. The low-rank prior that
is consistent with the m-set (σ²I + :math:`Q_{oo}`, under which z_q has the covariance σ²I +
:math:`Q_q`) is not the one that is consistent with the l-set: there is no joint density with both.

Differences from the paper: (71-72) print :math:`(K_{mm} + \sigma^{-2} I)^{-1}` where P belongs;
(70)'s constant is :math:`-\tfrac n2 \log 2\pi\sigma^2`; (68) is the
sum of two marginals (``"marginals"``) and not the joint density that the text speaks of, which has
one z_o for both (``"joint"``).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.names import CanonicalPrior, RegulariserName
from cgpt.sparse import SparseFeatures, SparsePosterior, factorise
from probseq.linalg import triangular_inverse
from probseq.transformers.functional import kernel_attention


def prior_root(
    canonical: Float[Tensor, "heads batch tokens dim"],
    features: SparseFeatures,
    posterior: SparsePosterior,
    noise_variance: Float[Tensor, " heads"],
    *,
    canonical_prior: CanonicalPrior = "noise-free",
    joint: bool = True,
) -> Float[Tensor, "heads batch both both"]:
    r"""Return S with :math:`\Omega = S S^\top`, so that :math:`U \Omega U^\top` is the prior.

    The covariance of :math:`z_o` is :math:`K_{oo}` at ``canonical`` (the paper), ``"noisy"``
    :math:`K_{oo} + \sigma^2 I`. Unless ``joint``, Ω is block-diagonal: :math:`z_q` and :math:`z_k`
    have nothing in common.
    """
    # X = diag(chol(D)⁻ᵀ, chol(D_kk)⁻ᵀ), and Φ X.
    m = posterior.coefficients.shape[-2]
    key_cholesky = factorise(posterior.gram[..., m:, m:])
    whiteners = [triangular_inverse(L).mT for L in (posterior.cholesky, key_cholesky)]
    blocks = features.canonical[..., :m], features.canonical[..., m:]
    whitened = torch.cat([block @ X for block, X in zip(blocks, whiteners, strict=True)], -1)
    # Xᵀ Φᵀ K_oo Φ X.
    covariance = kernel_form(canonical, whitened)
    variance = noise_variance[:, None, None, None]
    if canonical_prior == "noisy":
        covariance = covariance + variance * (whitened.mT @ whitened)
    if not joint:
        first = torch.arange(covariance.shape[-1], device=covariance.device) < m
        covariance = torch.where(first[:, None] == first, covariance, 0.0)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    cholesky = factorise(covariance + variance * eye)
    # S = X chol(σ²I + Xᵀ Φᵀ K_oo Φ X).
    rows = cholesky[..., :m, :], cholesky[..., m:, :]
    return torch.cat([X @ row for X, row in zip(whiteners, rows, strict=True)], -2)


def log_density(
    canonical: Float[Tensor, "heads batch tokens dim"],
    features: SparseFeatures,
    posterior: SparsePosterior,
    values: Float[Tensor, "heads batch tokens channels"],
    noise: tuple[
        Float[Tensor, "heads batch_or_1 tokens_or_1 1"],
        Float[Tensor, "heads batch_or_1 tokens_or_1 1"],
    ],
    noise_variance: Float[Tensor, " heads"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    regulariser: RegulariserName = "joint",
    canonical_prior: CanonicalPrior = "noise-free",
) -> Float[Tensor, "heads batch"]:
    r"""Log-density of ν and z_k in nats, summed over output dimensions.

    ``"joint"``: :math:`\log N([\nu; z_k]; 0, \sigma^2 I + U \Omega U^\top)`. ``"marginals"``: the
    sum of its two marginals. ``"jensen"``: the lower bound of the marginals (69-72),

    .. math::
        -\tfrac{1}{2\sigma^2} \big[|\nu|^2 + \mathrm{tr}(W_q \Omega_q W_q^\top)\big]
        - \tfrac n2 \log 2 \pi \sigma^2

    for the queries and the same for the keys.

    Args:
        canonical: :math:`X_o`.
        features: see :func:`cgpt.sparse.sparse_features`.
        posterior: see :func:`cgpt.sparse.sparse_posterior`.
        values: :math:`z_k`; rows of padding are zero.
        noise: variances of queries and of keys given the inducing variables, σ² in the equations
            above, see :func:`cgpt.sparse.row_noise`.
        noise_variance: σ².
        mask: true at real tokens.
        regulariser: one of the three.
        canonical_prior: see :func:`prior_root`.
    """
    root = prior_root(
        canonical,
        features,
        posterior,
        noise_variance,
        canonical_prior=canonical_prior,
        joint=regulariser == "joint",
    )
    m, channels = posterior.coefficients.shape[-2:]
    # W_qᵀ Λ_q⁻¹ W_q, W_kᵀ Λ_k⁻¹ W_k, W_kᵀ Λ_k⁻¹ z_k, W_qᵀ Λ_q⁻¹ ν, with Λ the noise.
    query_noise, key_noise = noise
    query_gram = _weighted(features.queries, features.queries, query_noise)
    key_gram = _weighted(features.keys, features.keys, key_noise, posterior.key_gram)
    key_values = _weighted(features.keys, values, key_noise, posterior.key_values)
    query_values = query_gram @ posterior.coefficients
    # |ν|² and |z_k|², over the noise.
    squares = (posterior.coefficients * query_values).sum((-2, -1)) + _squares(values, key_noise)
    # n log 2π + log |Λ|.
    real = torch.ones_like(values[:1, :, :, :1]) if mask is None else mask[None, :, :, None]
    log_noise = sum((real * (math.log(2 * math.pi) + row.log())).sum((-2, -1)) for row in noise)

    # Uᵀ Λ⁻¹ U S.
    gram_root = torch.cat([query_gram @ root[..., :m, :], key_gram @ root[..., m:, :]], -2)
    if regulariser == "jensen":
        trace = (root * gram_root).sum((-2, -1))
        return -0.5 * (squares + channels * (trace + log_noise))

    # |Λ + UΩUᵀ| = |Λ| |inner|, inner = I + Sᵀ Uᵀ Λ⁻¹ U S.
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    inner = eye + root.mT @ gram_root
    # yᵀ(Λ + UΩUᵀ)⁻¹y = yᵀΛ⁻¹y - rightᵀ inner⁻¹ right, right = Sᵀ Uᵀ Λ⁻¹ y, y = [ν; z_k].
    right = root.mT @ torch.cat([query_values, key_values], -2)
    cholesky = factorise(inner)
    log_determinant = 2.0 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    half = torch.linalg.solve_triangular(cholesky, right, upper=False)
    explained = half.square().sum((-2, -1))
    return -0.5 * (squares - explained + channels * (log_determinant + log_noise))


def kernel_form(
    inputs: Float[Tensor, "heads batch tokens dim"],
    features: Float[Tensor, "heads batch tokens channels"],
) -> Float[Tensor, "heads batch channels channels"]:
    r"""Compute :math:`\Phi^\top K_{oo} \Phi` in O(T) memory; zero rows of Φ take no part."""
    smoothed = kernel_attention(inputs, inputs, features, kernel="rbf")
    # The sum over tokens in float64: what is factorised next has a small floor.
    return (features.double().mT @ smoothed.double()).to(features.dtype)


def _weighted(rows: Tensor, others: Tensor, noise: Tensor, product: Tensor | None = None) -> Tensor:
    """Sum of rows otherᵀ / noise over tokens; ``product`` is the sum without noise, if known."""
    if noise.shape[-2] == 1:
        return (rows.mT @ others if product is None else product) / noise
    return rows.mT @ (others / noise)


def _squares(values: Tensor, noise: Tensor) -> Tensor:
    """Sum of squares over the noise, ``(H, B)``."""
    if noise.shape[-2] == 1:
        return torch.linalg.vector_norm(values, dim=(-2, -1)).square() / noise[..., 0, 0]
    return (values.square() / noise).sum((-2, -1))
