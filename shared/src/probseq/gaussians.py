"""Multivariate normal distributions: divergence, sampling, density.

NaN and infinity in a tensor reach the result; variances and standard
deviations below zero or NaN are refused.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import broadcastable, check_generator, check_real, check_shape
from probseq.linalg import safe_cholesky

__all__ = ["DiagonalGaussian", "JointGaussian", "gauss_kl"]


@dataclass(frozen=True, eq=False)
class DiagonalGaussian:
    """Normal distribution N(mean, diag(variance)) of vectors, whose variances are not negative."""

    mean: Float[Tensor, "*b n"]
    variance: Float[Tensor, "*b n"]

    def __post_init__(self) -> None:
        check_real(mean=self.mean, variance=self.variance)
        if self.mean.ndim < 1 or self.variance.shape != self.mean.shape:
            raise ValueError(
                "mean and variance must have the same shape (..., n), got "
                f"{tuple(self.mean.shape)} and {tuple(self.variance.shape)}"
            )
        if not torch.compiler.is_compiling() and not bool((self.variance >= 0).all()):
            smallest = float(self.variance.min())  # NaN if there is one
            raise ValueError(
                f"variance must not be negative or NaN, got a smallest value of {smallest}"
            )

    def to(self, dtype: torch.dtype) -> "DiagonalGaussian":
        """Return the distribution in another dtype."""
        _refuse_dtype(dtype)
        return DiagonalGaussian(self.mean.to(dtype), self.variance.to(dtype))

    def rsample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """Draw samples mean + √variance·ε that can be differentiated.

        ``sample_shape`` are leading dimensions of independent draws; the generator is on the
        mean's device.
        """
        return self.mean + self.variance.sqrt() * _noise(self.mean, sample_shape, generator)

    def log_prob(self, value: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b"]:
        """Return the log-density of whole vectors, summed over the last dimension."""
        _check_value(value, self.mean)
        mahalanobis = (value - self.mean).square() / self.variance  # (x − μ)²/σ² of each entry
        return -0.5 * (mahalanobis + self.variance.log() + math.log(2 * math.pi)).sum(-1)


@dataclass(frozen=True, eq=False)
class JointGaussian:
    """Normal distribution N(mean, covariance) of vectors of length n, batched.

    ``rsample`` and ``log_prob`` factorise the covariance with ``safe_cholesky`` and so include its
    jitter.
    """

    mean: Float[Tensor, "*b n"]
    covariance: Float[Tensor, "*b n n"]

    def __post_init__(self) -> None:
        check_real(mean=self.mean, covariance=self.covariance)
        if self.mean.ndim < 1 or self.covariance.shape != (*self.mean.shape, self.mean.shape[-1]):
            raise ValueError(
                "mean and covariance must have the shapes (..., n) and (..., n, n), got "
                f"{tuple(self.mean.shape)} and {tuple(self.covariance.shape)}"
            )

    @property
    def variance(self) -> Float[Tensor, "*b n"]:
        """Diagonal of the covariance."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def to(self, dtype: torch.dtype) -> "JointGaussian":
        """Return the distribution in another dtype."""
        _refuse_dtype(dtype)
        return JointGaussian(self.mean.to(dtype), self.covariance.to(dtype))

    def rsample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "..."]:
        """Draw samples mean + Lε that can be differentiated, LLᵀ the covariance."""
        noise = _noise(self.mean, sample_shape, generator)
        return self.mean + (safe_cholesky(self.covariance) @ noise[..., None])[..., 0]

    def log_prob(self, value: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b"]:
        """Return the log-density of whole vectors."""
        _check_value(value, self.mean)
        L = safe_cholesky(self.covariance)
        residual = (value - self.mean)[..., None]
        # |L⁻¹(x − μ)|² = (x − μ)ᵀΣ⁻¹(x − μ), and log|Σ| = 2 Σ_i log L_ii
        alpha = torch.linalg.solve_triangular(L, residual, upper=False)[..., 0]
        mahalanobis = alpha.square().sum(-1)
        log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (mahalanobis + log_det + self.mean.shape[-1] * math.log(2 * math.pi))


def standard_normal(
    shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None = None
) -> Float[Tensor, "..."]:
    """Draw standard normal noise, on the device and in the dtype of ``like``.

    The numbers are those of ``torch.randn``, which takes no generator where a compiled graph leaves
    the size of the batch open. A generator is refused where activations are checkpointed for
    gradients.
    """
    check_generator(generator)
    return like.new_empty(shape).normal_(generator=generator)


def gauss_kl(
    q_mu: Float[Tensor, "*b m"],
    q_sqrt: Float[Tensor, "*#b m m"],
    L: Float[Tensor, "*#b m m"] | None = None,
) -> Float[Tensor, "*b"]:
    """Return KL(q‖p) in nats of q = N(q_mu, S), S = q_sqrt q_sqrtᵀ, from p = N(0, LLᵀ) or N(0, I).

    KL = ½ [μᵀ(LLᵀ)⁻¹μ − M − log|S| + tr((LLᵀ)⁻¹S) + log|LLᵀ|]. With the lower triangular W = L⁻¹
    q_sqrt the last four terms are Σ_{i>j} W_ij² + Σ_i (W_ii² − 1 − log W_ii²): nothing but terms
    that are not negative, so that round-off cannot make the divergence negative either.

    Every leading dimension of `q_mu` is a batch, output dimensions included; those of size one of
    the lower triangular factors, above whose diagonal nothing is read, are shared. The divergence
    of each batch member is infinite where S is singular.
    """
    _check_divergence(q_mu, q_sqrt, L)
    factor = q_sqrt.tril()
    # α = L⁻¹μ and W = L⁻¹ q_sqrt.
    if L is None:
        alpha, whitened = q_mu, factor
    else:
        alpha = torch.linalg.solve_triangular(L, q_mu[..., None], upper=False)[..., 0]
        whitened = torch.linalg.solve_triangular(L, factor, upper=False)

    # Mahalanobis term: μᵀ(LLᵀ)⁻¹μ = |α|².
    mahalanobis = alpha.square().sum(-1)
    # tr((LLᵀ)⁻¹S) = ‖W‖²_F: below the diagonal first.
    below = whitened.tril(-1).square().sum((-2, -1))
    # Its diagonal, with −M − log|S| + log|LLᵀ|: Σ_i (W_ii² − 1 − log W_ii²). With w = |W_ii| each
    # is (w − 1)² + 2 (w − 1 − log w). Near one w − 1 is exact, and log w is never above it.
    w = whitened.diagonal(dim1=-2, dim2=-1).abs()
    on_diagonal = ((w - 1).square() + 2 * (w - 1 - w.log())).sum(-1)
    return 0.5 * (mahalanobis + below + on_diagonal)


def _noise(
    like: Tensor, sample_shape: tuple[int, ...], generator: torch.Generator | None
) -> Tensor:
    check_shape(sample_shape=sample_shape)
    return standard_normal((*sample_shape, *like.shape), like=like, generator=generator)


def _refuse_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")


def _check_value(value: Tensor, mean: Tensor) -> None:
    check_real(value=value, mean=mean)
    if (
        value.ndim < 1
        or value.shape[-1] != mean.shape[-1]
        or not broadcastable(value.shape, mean.shape)
    ):
        raise ValueError(
            f"value must broadcast against the mean's shape {tuple(mean.shape)} and hold vectors "
            f"of length {mean.shape[-1]}, got {tuple(value.shape)}"
        )


def _check_divergence(q_mu: Tensor, q_sqrt: Tensor, L: Tensor | None) -> None:
    factors = {"q_sqrt": q_sqrt} if L is None else {"q_sqrt": q_sqrt, "L": L}
    check_real(q_mu=q_mu, **factors)
    square = (*q_mu.shape[-1:], *q_mu.shape[-1:])
    batches = [q_mu.shape[:-1], *(factor.shape[:-2] for factor in factors.values())]
    matches = q_mu.ndim >= 1 and q_sqrt.ndim == q_mu.ndim + 1
    if not (
        matches
        and all(factor.shape[-2:] == square for factor in factors.values())
        and broadcastable(*batches)
    ):
        raise ValueError(
            "q_mu must have shape (..., m), q_sqrt (..., m, m), L (..., m, m) or None, got "
            + ", ".join(str(tuple(each.shape)) for each in (q_mu, *factors.values()))
        )
