"""The exact Gaussian process in O(n³): what the online methods approximate."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ohsvgp.likelihoods import Gaussian
from probseq.checks import check_finite, check_floating, check_sizes
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import Kernel
from probseq.linalg import safe_cholesky

# The noise keeps K + σ²I well conditioned: jitter starts at round-off, unlike that of K_uu.
_JITTER_TRIES = 8


class ExactGP:
    """The exact Gaussian process with ``OnlineGP``'s methods: it keeps all data, in float64.

    Kernel and likelihood are converted to float64 in place.
    """

    def __init__(self, kernel: Kernel, likelihood: Gaussian) -> None:
        self.kernel, self.likelihood = kernel.double(), likelihood.double()
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    def update(self, t: Any, y: Any) -> None:
        """Keep data; nothing is kept if some of it is refused.

        Times have the shape (n,), points (n, d), and targets (*b, n) with the *b of the data
        before.
        """
        points, y = self._points(t), torch.as_tensor(y)
        check_floating(y=y)
        series = self._y[0].shape[:-1] if self._y else y.shape[:-1]
        check_sizes("y", y, *series, len(points))
        check_finite(y=y)
        self._x.append(points)
        self._y.append(y.double())

    def predict(self, t: Any, *, include_noise: bool = False) -> DiagonalGaussian:
        """Return the posterior of f, or mean and variance of y, given all data."""
        if not self._x:
            raise ValueError("predict needs data: call update first")
        x, y, new = torch.cat(self._x), torch.cat(self._y, -1), self._points(t)
        with torch.no_grad():
            latent = exact_posterior(self.kernel, self.likelihood.noise, x, y, new)
            if include_noise:
                latent = self.likelihood.predictive_moments(latent.mean, latent.variance)
            return latent

    def _points(self, t: Any) -> Tensor:
        """Return times or points as points in float64."""
        t = torch.as_tensor(t)
        check_floating(t=t)
        points = t[:, None] if t.ndim == 1 else t
        check_sizes("t", points, "n", self.kernel.dim)
        check_finite(t=t)
        return points.double()


def exact_posterior(
    kernel: Kernel,
    noise: Float[Tensor, "*#b"] | float,
    x: Float[Tensor, "*#b n d"],
    y: Float[Tensor, "*#b n"],
    x_new: Float[Tensor, "*#b m d"],
) -> DiagonalGaussian:
    """Return the posterior of f at new inputs given all data at once; noise is not included.

    mean = K_*f (K_ff + σ²I)⁻¹ y, variance = diag(K_** − K_*f (K_ff + σ²I)⁻¹ K_f*).

    Leading dimensions are independent series; σ² is a number or one per series.

    Raises:
        CholeskyError: the noise is below round-off.
    """
    check_finite(x=x, y=y, x_new=x_new)
    L = _root(kernel, noise, x, y)
    # With K_ff + σ²I = LLᵀ and A = L⁻¹K_f*: mean = Aᵀ L⁻¹y, variance = diag(K_** − AᵀA).
    A = torch.linalg.solve_triangular(L, kernel(x, x_new), upper=False)
    mean = (_whitened(L, y)[..., None, :] @ A)[..., 0, :]
    prior = kernel.diag(x_new)
    # What the true difference cannot fall below, round-off does.
    floor = torch.finfo(prior.dtype).eps * prior.detach()
    variance = prior - A.square().sum(-2)
    return DiagonalGaussian(mean, torch.maximum(variance, floor).expand(mean.shape))


def log_marginal_likelihood(
    kernel: Kernel,
    noise: Float[Tensor, "*#b"] | float,
    x: Float[Tensor, "*#b n d"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Bool[Tensor, "*#b n"] | None = None,
    weights: Float[Tensor, "*#b n"] | None = None,
    features: Float[Tensor, "n p"] | None = None,
) -> Float[Tensor, "*b"]:
    """Return log N(y; 0, K_ff + σ²I + ΦΦᵀ) in nats, one per series.

    The noise is a number or one per series, divided by the weights; leading dimensions of y are
    independent series. Points count where the mask is True, all if None. Features are Φ of a mean
    beside the process, whose weights are N(0, I) a priori.

    Raises:
        CholeskyError: the matrix holds NaN or infinity, or the noise is below round-off.
    """
    # K_ff + σ²I = LLᵀ; −½ [|L⁻¹y|² + 2 Σ log L_ii + n log 2π].
    L = _root(kernel, noise, x, y, mask, weights)
    count = y.shape[-1] if mask is None else mask.sum(-1)
    y = y if mask is None else y.masked_fill(~mask, 0.0)
    alpha = _whitened(L, y)
    log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if features is not None:
        # |K + ΦΦᵀ| = |K| |R|², and yᵀ(K + ΦΦᵀ)⁻¹y is the square of what the weights leave.
        Q, R = _weights(L, features if mask is None else features * mask[..., None])
        log_det = log_det + 2 * R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        alpha = torch.nn.functional.pad(alpha, (0, R.shape[-1]))
        for _ in range(2):  # the first difference is of large numbers
            alpha = alpha - ((alpha[..., None, :] @ Q) @ Q.mT)[..., 0, :]
    return -0.5 * (alpha.square().sum(-1) + log_det + count * math.log(2 * math.pi))


def _root(
    kernel: Kernel,
    noise: Tensor | float,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the Cholesky factor of K_ff + σ²I, where hidden points are independent, of size 1."""
    if x.ndim < 2 or y.ndim < 1 or x.shape[-2] != y.shape[-1]:
        raise ValueError(
            "x and y must have the shapes (..., n, d) and (..., n), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    noise = torch.as_tensor(noise, dtype=y.dtype, device=y.device)
    if not bool((noise > 0).all()):
        raise ValueError(f"noise must be a variance above 0, got {noise.tolist()}")
    covariance = kernel(x, x)
    diagonal = noise[..., None].expand(*noise.shape, y.shape[-1])
    diagonal = diagonal if weights is None else diagonal / weights
    if mask is not None:
        covariance = covariance * (mask[..., None] & mask[..., None, :])
        diagonal = torch.where(mask, diagonal, torch.ones_like(diagonal))
    total = covariance + torch.diag_embed(diagonal)
    return safe_cholesky(total, jitter=torch.finfo(total.dtype).eps, max_tries=_JITTER_TRIES)


def _weights(L: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and R of (S; I) = QR, S = L⁻¹Φ: RᵀR is the weights' precision I + SᵀS.

    K + ΦΦᵀ itself would lose the process beside a wide prior of the weights.
    """
    S = torch.linalg.solve_triangular(
        L, features.expand(*L.shape[:-2], *features.shape[-2:]), upper=False
    )
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand(*S.shape[:-2], -1, -1)
    return torch.linalg.qr(torch.cat([S, eye], -2))


def _whitened(L: Tensor, y: Tensor) -> Tensor:
    """Return L⁻¹y; series that share one factor are solved for together, without copies of it."""
    if L.ndim > 2:
        return torch.linalg.solve_triangular(L, y[..., None], upper=False)[..., 0]
    columns = y.reshape(-1, y.shape[-1]).mT
    return torch.linalg.solve_triangular(L, columns, upper=False).mT.reshape(y.shape)
