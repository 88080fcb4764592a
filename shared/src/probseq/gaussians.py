"""Multivariate normal distributions: conditioning, divergence, sampling, density."""

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.linalg import safe_cholesky

__all__ = ["DiagonalGaussian", "Gaussian", "conditional", "gauss_kl"]


@dataclass(frozen=True, eq=False)
class DiagonalGaussian:
    """Normal distribution N(mean, diag(variance)) of vectors of length n, batched.

    Attributes:
        mean: shape (*b, n).
        variance: shape (*b, n).
    """

    mean: Float[Tensor, "*b n"]
    variance: Float[Tensor, "*b n"]

    def rsample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """Draw samples mean + √variance·ε that can be differentiated.

        Args:
            sample_shape: leading dimensions of independent draws.
            generator: source of randomness, on the mean's device.

        Returns:
            Samples of shape (*sample_shape, *b, n).
        """
        return self.mean + self.variance.sqrt() * _noise(self.mean, sample_shape, generator)

    def log_prob(self, value: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b"]:
        """Log-density of whole vectors, summed over the last dimension.

        Args:
            value: points, broadcast against ``mean``.

        Returns:
            The log-densities in nats.
        """
        mahalanobis = (value - self.mean).square() / self.variance
        return -0.5 * (mahalanobis + self.variance.log() + math.log(2 * math.pi)).sum(-1)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Normal distribution N(mean, covariance) of vectors of length n, batched.

    ``rsample`` and ``log_prob`` factorise the covariance with ``safe_cholesky`` and so include its
    jitter.

    Attributes:
        mean: shape (*b, n).
        covariance: shape (*b, n, n).
    """

    mean: Float[Tensor, "*b n"]
    covariance: Float[Tensor, "*b n n"]

    @property
    def variance(self) -> Float[Tensor, "*b n"]:
        """Diagonal of the covariance."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def rsample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """Draw samples mean + Lε that can be differentiated, LLᵀ the covariance.

        Args:
            sample_shape: leading dimensions of independent draws.
            generator: source of randomness, on the mean's device.

        Returns:
            Samples of shape (*sample_shape, *b, n).
        """
        noise = _noise(self.mean, sample_shape, generator)
        return self.mean + (safe_cholesky(self.covariance) @ noise[..., None])[..., 0]

    def log_prob(self, value: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b"]:
        """Log-density of whole vectors.

        Args:
            value: points, broadcast against ``mean``.

        Returns:
            The log-densities in nats.
        """
        L = safe_cholesky(self.covariance)
        residual = (value - self.mean)[..., None]
        alpha = torch.linalg.solve_triangular(L, residual, upper=False)[..., 0]
        mahalanobis = alpha.square().sum(-1)
        log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (mahalanobis + log_det + self.mean.shape[-1] * math.log(2 * math.pi))


def gauss_kl(
    q_mu: Float[Tensor, "*b m"],
    q_sqrt: Float[Tensor, "*#b m m"] | Float[Tensor, "*#b m"],
    L: Float[Tensor, "*#b m m"] | None = None,
) -> Float[Tensor, "*b"]:
    """Divergence KL(q‖p) of q = N(q_mu, S), S = q_sqrt q_sqrtᵀ, from p = N(0, LLᵀ) or N(0, I).

    KL = ½ [μᵀ(LLᵀ)⁻¹μ − M − log|S| + tr((LLᵀ)⁻¹S) + log|LLᵀ|].

    Args:
        q_mu: mean μ of q; every leading dimension is a batch, output dimensions included.
        q_sqrt: either a lower triangular factor of S, with one dimension more than ``q_mu`` (the
            rest of it is not read), or the standard deviations of a diagonal S, with as many
            dimensions as ``q_mu``. Batch dimensions of size one are shared.
        L: lower Cholesky factor of p's covariance; the identity if None.

    Returns:
        The divergence of each batch member in nats, not summed.

    Raises:
        ValueError: ``q_sqrt`` has another number of dimensions.
    """
    if q_sqrt.ndim - q_mu.ndim not in (0, 1):
        raise ValueError(
            f"q_sqrt must have as many dimensions as q_mu (standard deviations) or one more "
            f"(triangular factors), got shapes {tuple(q_sqrt.shape)} and {tuple(q_mu.shape)}"
        )
    diagonal = q_sqrt.ndim == q_mu.ndim
    factor = torch.diag_embed(q_sqrt) if diagonal else q_sqrt.tril()
    if L is None:
        alpha, whitened = q_mu, factor
        log_det_p = torch.zeros_like(q_mu[..., 0])
    else:
        alpha = torch.linalg.solve_triangular(L, q_mu[..., None], upper=False)[..., 0]
        whitened = torch.linalg.solve_triangular(L, factor, upper=False)
        log_det_p = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    # Mahalanobis term: μᵀ(LLᵀ)⁻¹μ.
    mahalanobis = alpha.square().sum(-1)
    # Constant term: −M.
    constant = -q_mu.shape[-1]
    # Log-determinant of q's covariance; the factor's diagonal may have any sign.
    log_det_q = 2 * factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    # Trace term: tr((LLᵀ)⁻¹S) = ‖L⁻¹ q_sqrt‖²_F.
    trace = whitened.square().sum((-2, -1))
    return 0.5 * (mahalanobis + constant - log_det_q + trace + log_det_p)


@overload
def conditional(
    Kmn: Tensor,
    Lm: Tensor,
    Knn: Tensor,
    q_mu: Tensor,
    q_sqrt: Tensor | None,
    *,
    whiten: bool,
    full_cov: Literal[False],
) -> DiagonalGaussian: ...
@overload
def conditional(
    Kmn: Tensor,
    Lm: Tensor,
    Knn: Tensor,
    q_mu: Tensor,
    q_sqrt: Tensor | None,
    *,
    whiten: bool,
    full_cov: Literal[True],
) -> Gaussian: ...
@overload
def conditional(
    Kmn: Tensor,
    Lm: Tensor,
    Knn: Tensor,
    q_mu: Tensor,
    q_sqrt: Tensor | None,
    *,
    whiten: bool,
    full_cov: bool,
) -> DiagonalGaussian | Gaussian: ...
def conditional(
    Kmn: Float[Tensor, "*#b m n"],
    Lm: Float[Tensor, "*#b m m"],
    Knn: Float[Tensor, "*#b n n"] | Float[Tensor, "*#b n"],
    q_mu: Float[Tensor, "*#b m"],
    q_sqrt: Float[Tensor, "*#b m m"] | None,
    *,
    whiten: bool,
    full_cov: bool,
) -> DiagonalGaussian | Gaussian:
    """Marginal q(f) = ∫ p(f|u) q(u) du of a Gaussian process at n points, given q at m others.

    p(f|u) = N(K_nm K_mm⁻¹ u, K_nn − K_nm K_mm⁻¹ K_mn) and q(u) = N(q_mu, S), S = q_sqrt q_sqrtᵀ.
    With ``whiten``, q_mu and q_sqrt describe v instead, u = L_m v. With A = L_m⁻¹ K_mn,

        whitened:  mean = Aᵀ q_mu,        covariance = K_nn − AᵀA + Aᵀ S A
        not:       mean = Aᵀ L_m⁻¹ q_mu,  covariance = K_nn − AᵀA + Aᵀ L_m⁻¹ S L_m⁻ᵀ A

    Args:
        Kmn: covariance of u and f.
        Lm: lower Cholesky factor of K_mm, from ``safe_cholesky``.
        Knn: covariance of f if ``full_cov``, else its diagonal.
        q_mu: mean of u, or of v if ``whiten``. Leading dimensions broadcast: for D output
            dimensions that share the kernel, give the covariances a dimension of size one.
        q_sqrt: lower triangular factor of S (the rest of it is not read); None for S = 0, which
            conditions on u = q_mu exactly.
        whiten: whether q is over v.
        full_cov: whether to return the covariance of f or only its diagonal.

    Returns:
        ``Gaussian`` if ``full_cov``, else ``DiagonalGaussian``. The diagonal of the conditional
        term is kept above round-off of K_nn, so variances are positive wherever K_nn is.
    """
    A = torch.linalg.solve_triangular(Lm, Kmn, upper=False)
    if full_cov:
        covariance = Knn - A.mT @ A
    else:
        # What the true difference cannot fall below, round-off does.
        floor = torch.finfo(Knn.dtype).eps * Knn.detach()
        covariance = torch.maximum(Knn - A.square().sum(-2), floor)
    # What q's moments are multiplied by: L_m⁻¹ K_mn, or K_mm⁻¹ K_mn.
    projection = A if whiten else torch.linalg.solve_triangular(Lm.mT, A, upper=True)
    mean = (projection.mT @ q_mu[..., None])[..., 0]
    if q_sqrt is not None:
        root = q_sqrt.tril().mT @ projection
        covariance = covariance + (root.mT @ root if full_cov else root.square().sum(-2))
    if full_cov:
        n = mean.shape[-1]
        # Not torch.broadcast_shapes, which imports sympy: seconds in the first call of a process.
        batch = torch.broadcast_tensors(mean, covariance[..., 0])[0].shape[:-1]
        return Gaussian(mean.expand(*batch, n), covariance.expand(*batch, n, n))
    return DiagonalGaussian(*torch.broadcast_tensors(mean, covariance))


def _noise(
    like: Tensor, sample_shape: tuple[int, ...], generator: torch.Generator | None
) -> Tensor:
    shape = (*sample_shape, *like.shape)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
