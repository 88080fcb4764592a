r"""Sparse correlated Gaussian processes as functions of tensors (CGPT paper, section 4, C and D).

The canonical process :math:`z_o` is seen through two sets of inducing inputs: the m-set between
queries and canonical inputs, the l-set between canonical inputs and keys. With
:math:`P = (K_{mm} + \sigma^{-2} K_{mo} K_{om})^{-1}` and
:math:`R = (K_{\ell\ell} + \sigma^{-2} K_{\ell k} K_{k\ell})^{-1}` the prediction is
:math:`N(\nu, V)`,

.. math::
    \nu &= \sigma^{-4} K_{qm} P K_{mo} K_{o\ell} R K_{\ell k} z_k && (58) \\
    V &= \sigma^2 I + K_{qm} M K_{mq}, \quad
    M = P + \sigma^{-4} P K_{mo} (\sigma^2 I + K_{o\ell} R K_{\ell o}) K_{om} P. && (59-67)

Everything is evaluated in whitened coordinates: with :math:`L_m L_m^\top = K_{mm}` the rows of
:math:`W_q = K_{qm} L_m^{-\top}`, :math:`A = K_{om} L_m^{-\top}`, :math:`C = K_{o\ell}
L_\ell^{-\top}` and :math:`W_k = K_{k\ell} L_\ell^{-\top}` are features of tokens, and

.. math::
    \nu = W_q\, D^{-1} A^\top C\, D_k^{-1} W_k^\top z_k, \quad
    D = \sigma^2 I + A^\top A, \quad D_k = \sigma^2 I + W_k^\top W_k.

Powers of σ have gone, and what is factorised has no eigenvalue below σ²: float32 is enough at
σ = 0.1, where P itself is not representable to any use. No T×T matrix is made.

Shapes: H heads, B sequences, T tokens, m and l inducing inputs, s output dimensions. Tensors are
laid out ``(H, B, T, ...)``; inducing inputs are ``(H, 1, m, dim)`` where all sequences share them.
All inputs are already divided by the lengthscales, and near the origin (see
:func:`~probseq.transformers.functional.rbf_matrix`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from cgpt.covariances import plus_diagonal
from cgpt.names import SparseConditional
from probseq.kernels.distances import scaled_squared_distance
from probseq.linalg import safe_cholesky, triangular_inverse
from probseq.transformers.functional import rbf_matrix
from probseq.transformers.names import ATTENTION_JITTER


class SparseFeatures(NamedTuple):
    r"""Whitened covariances between tokens and inducing inputs; rows of padding are zero."""

    queries: Float[Tensor, "heads batch tokens inducing"]  # W_q, with the scale σ_q
    canonical: Float[Tensor, "heads batch tokens both"]  # [A, C] side by side
    keys: Float[Tensor, "heads batch tokens key_inducing"]  # W_k, with the scale σ_k


class SparsePosterior(NamedTuple):
    r"""Terms of the prediction, in the whitened coordinates of the inducing inputs."""

    # D⁻¹ Aᵀ C D_k⁻¹ W_kᵀ z_k; the mean (58) is W_q times it
    coefficients: Float[Tensor, "heads batch inducing channels"]
    gram: Float[Tensor, "heads batch both both"]  # σ²I + [A, C]ᵀ [A, C], D as its first block
    cholesky: Float[Tensor, "heads batch inducing inducing"]  # of D
    key_gram: Float[Tensor, "heads batch key_inducing key_inducing"]  # W_kᵀ W_k
    key_cholesky: Float[Tensor, "heads batch key_inducing key_inducing"]  # of D_k
    key_values: Float[Tensor, "heads batch key_inducing channels"]  # W_kᵀ z_k


def sparse_features(
    queries: Float[Tensor, "heads batch tokens dim"],
    canonical: Float[Tensor, "heads batch tokens dim"],
    keys: Float[Tensor, "heads batch tokens dim"],
    inducing: Float[Tensor, "heads batch_or_1 inducing dim"],
    key_inducing: Float[Tensor, "heads batch_or_1 key_inducing dim"],
    query_scale: Float[Tensor, " heads"],
    key_scale: Float[Tensor, " heads"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    jitter: float = ATTENTION_JITTER,
) -> SparseFeatures:
    r"""Whiten the covariances :math:`K_{qm}, K_{om}, K_{o\ell}, K_{k\ell}`.

    Both inducing sets, m and l, are in the space of the canonical inputs. The jitter is relative.
    """
    if inducing.shape == key_inducing.shape:  # one factorisation instead of two
        stacked = _whitener(torch.stack([inducing, key_inducing]), jitter)
        whitener, key_whitener = stacked.unbind(0)
    else:
        whitener, key_whitener = _whitener(inducing, jitter), _whitener(key_inducing, jitter)
    arguments = (
        (queries, inducing, query_scale[:, None, None, None] * whitener),
        (
            canonical,
            torch.cat([inducing, key_inducing], -2),
            _block_diagonal(whitener, key_whitener),
        ),
        (keys, key_inducing, key_scale[:, None, None, None] * key_whitener),
    )
    return SparseFeatures(
        *(_features(inputs, at, whiten, mask) for inputs, at, whiten in arguments)
    )


def sparse_posterior(
    features: SparseFeatures,
    values: Float[Tensor, "heads batch tokens channels"],
    noise_variance: Float[Tensor, " heads"],
) -> SparsePosterior:
    r"""Condition :math:`z_q` on :math:`z_k = X W_v` (58), right to left; padding is not read."""
    m = features.queries.shape[-1]
    variance = noise_variance[:, None, None, None]
    gram = plus_diagonal(features.canonical.mT @ features.canonical, variance)
    key_gram = features.keys.mT @ features.keys
    key_values = features.keys.mT @ values
    cholesky = factorise(gram[..., :m, :m])
    key_cholesky = factorise(plus_diagonal(key_gram, variance))
    # D_k⁻¹ W_kᵀ z_k, and D⁻¹ Aᵀ C times it.
    canonical_mean = torch.cholesky_solve(key_values, key_cholesky)
    coefficients = torch.cholesky_solve(gram[..., :m, m:] @ canonical_mean, cholesky)
    return SparsePosterior(coefficients, gram, cholesky, key_gram, key_cholesky, key_values)


def covariance_root(
    posterior: SparsePosterior, noise_variance: Float[Tensor, " heads"]
) -> Float[Tensor, "heads batch inducing inducing"]:
    r"""Return S with :math:`W_q S S^\top W_q^\top = K_{qm} M K_{mq}`, not triangular.

    In whitened coordinates M is :math:`\sigma^2 D^{-1} [D + A^\top A + A^\top C D_k^{-1} C^\top A]
    D^{-1}`, so S = :math:`\sigma D^{-1}` times the Cholesky factor of the bracket.
    """
    m = posterior.coefficients.shape[-2]
    # AᵀC, and AᵀC D_k⁻¹ CᵀA.
    cross = posterior.gram[..., :m, m:]
    through_keys = cross @ torch.cholesky_solve(cross.mT, posterior.key_cholesky)
    variance = noise_variance[:, None, None, None]
    # D + AᵀA = 2D - σ²I.
    factor = factorise(plus_diagonal(2.0 * posterior.gram[..., :m, :m] + through_keys, -variance))
    root = torch.cholesky_solve(factor, posterior.cholesky)
    return variance.sqrt() * root


def row_noise(
    rows: Float[Tensor, "heads batch tokens features"],
    scale: Float[Tensor, " heads"],
    noise_variance: Float[Tensor, " heads"],
    conditional: SparseConditional,
) -> Float[Tensor, "heads batch_or_1 tokens_or_1 1"]:
    r"""Variance of each token given the inducing variables.

    ``"sor"`` (the paper): σ² everywhere, so that far from the inducing inputs the predictive
    variance falls to σ², though nothing is known there. ``"fitc"`` adds what the inducing variables
    leave unexplained, :math:`\mathrm{diag}(K_q - Q_q)` with :math:`Q_q = K_{qm} K_{mm}^{-1}
    K_{mq}`: far away, the prior's σ_q² comes back.

    Rows are :math:`W_q` with σ_q, or :math:`W_k` with σ_k, for the keys.
    """
    noise_variance = noise_variance[:, None, None, None]
    if conditional == "sor":
        return noise_variance
    prior = scale.square()[:, None, None, None]
    # Below zero only by round-off.
    return noise_variance + (prior - rows.square().sum(-1, keepdim=True)).clamp(min=0.0)


def predictive_variance(
    features: SparseFeatures,
    root: Float[Tensor, "heads batch inducing inducing"],
    noise: Float[Tensor, "heads batch_or_1 tokens_or_1 1"],
) -> Float[Tensor, "heads batch tokens 1"]:
    """Diagonal of V, the same for all output dimensions, in O(T m²)."""
    return noise + (features.queries @ root).square().sum(-1, keepdim=True)


def factorise(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Cholesky factor of matrices whose eigenvalues are bounded below by a noise variance.

    They need no jitter; ``safe_cholesky``, which adds one always, is called where one fails all the
    same, and reports.
    """
    epsilon = torch.finfo(matrix.dtype).eps
    if torch.compiler.is_compiling():  # a graph cannot look at values
        return safe_cholesky(matrix, jitter=epsilon)
    cholesky, info = torch.linalg.cholesky_ex(matrix)
    diagonal = cholesky.detach().diagonal(dim1=-2, dim2=-1)
    if bool(info.any() | ~diagonal.isfinite().all()):  # one look: each waits for a GPU
        return safe_cholesky(matrix, jitter=epsilon)
    return cholesky


def _block_diagonal(first: Tensor, second: Tensor) -> Tensor:
    m, n = first.shape[-1], second.shape[-1]
    return torch.cat([F.pad(first, (0, n)), F.pad(second, (m, 0))], -2)


def _whitener(inputs: Tensor, jitter: float) -> Tensor:
    r"""Return :math:`L^{-\top}`, ``(H, B or 1, m, m)``."""
    unit = torch.ones_like(inputs[..., :1, :])
    # Summed differences: the expansion of the square would cost the digits that tell two nearby
    # inputs apart.
    covariance = torch.exp(-0.5 * scaled_squared_distance(inputs, inputs, unit, exact=True))
    return triangular_inverse(safe_cholesky(covariance, jitter=jitter)).mT


def _features(inputs: Tensor, inducing: Tensor, whitener: Tensor, mask: Tensor | None) -> Tensor:
    # Where all sequences share the inducing inputs, one product a head serves the whole batch.
    pattern = "h (b t) d" if inducing.shape[1] == 1 else "(h b) t d"
    rows = rearrange(inputs, f"h b t d -> {pattern}")
    features = rbf_matrix(rows, inducing.flatten(0, 1)) @ whitener.flatten(0, 1)
    features = rearrange(features, f"{pattern} -> h b t d", b=inputs.shape[1], h=inputs.shape[0])
    return features if mask is None else features.masked_fill(~mask[None, :, :, None], 0.0)
