"""The exact Gaussian process in O(n³): what the online methods approximate."""

import math
from typing import Any, Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ohsvgp.likelihoods import Gaussian as GaussianNoise
from ohsvgp.means import MeanKernel, process_of
from probseq.checks import check_finite, check_floating, check_sizes
from probseq.gaussians import DiagonalGaussian, Gaussian
from probseq.kernels import Kernel
from probseq.linalg import safe_cholesky

__all__ = ["ExactGP", "exact_posterior", "log_marginal_likelihood"]

# The noise keeps K + σ²I well conditioned: jitter starts at round-off, unlike that of K_uu.
_JITTER_TRIES = 8


class ExactGP:
    """The exact Gaussian process with ``OnlineGP``'s methods: it keeps all data, in float64.

    Args:
        kernel: covariance function; converted to float64 in place.
        likelihood: gives the noise; converted to float64 in place.

    Example:
        >>> import torch
        >>> from ohsvgp import ExactGP, Gaussian
        >>> from probseq.kernels import RBF
        >>> gp = ExactGP(RBF(1), Gaussian(0.01))
        >>> gp.update(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.8]))
        >>> gp.predict(torch.tensor([0.5, 0.7])).mean.shape
        torch.Size([2])
    """

    def __init__(self, kernel: Kernel, likelihood: GaussianNoise) -> None:
        self.kernel, self.likelihood = kernel.double(), likelihood.double()
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    def update(self, t: Any, y: Any) -> None:
        """Keep data; nothing is kept if some of it is refused.

        Args:
            t: times (n,) or points (n, d), a tensor or an array.
            y: targets (*b, n), with the *b of all that was kept before.

        Raises:
            ValueError: NaN or infinity, whole numbers, or shapes that don't go together.
        """
        points, y = self._points(t), torch.as_tensor(y)
        check_floating(y=y)
        series = self._y[0].shape[:-1] if self._y else y.shape[:-1]
        check_sizes("y", y, *series, len(points))
        check_finite(y=y)
        self._x.append(points)
        self._y.append(y.double())

    def predict(self, t: Any, *, include_noise: bool = False) -> DiagonalGaussian:
        """Posterior of f, or mean and variance of y, given all data.

        Raises:
            ValueError: no data yet, or times and points that ``update`` would refuse.
        """
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


@overload
def exact_posterior(
    kernel: Kernel,
    noise: Tensor | float,
    x: Tensor,
    y: Tensor,
    x_new: Tensor,
    *,
    full_cov: Literal[False] = False,
) -> DiagonalGaussian: ...
@overload
def exact_posterior(
    kernel: Kernel,
    noise: Tensor | float,
    x: Tensor,
    y: Tensor,
    x_new: Tensor,
    *,
    full_cov: Literal[True],
) -> Gaussian: ...
def exact_posterior(
    kernel: Kernel,
    noise: Float[Tensor, "*#b"] | float,
    x: Float[Tensor, "*#b n d"],
    y: Float[Tensor, "*#b n"],
    x_new: Float[Tensor, "*#b m d"],
    *,
    full_cov: bool = False,
) -> DiagonalGaussian | Gaussian:
    """Posterior of f at new inputs given all data at once.

    mean = K_*f (K_ff + σ²I)⁻¹ y, covariance = K_** − K_*f (K_ff + σ²I)⁻¹ K_f*.

    Args:
        kernel: prior covariance function.
        noise: σ², a number or one per series.
        x: inputs of the data; times are points of one dimension.
        y: targets; leading dimensions are independent series.
        x_new: where to predict.
        full_cov: whether to return the covariance of f or only its diagonal.

    Returns:
        ``Gaussian`` if ``full_cov``, else ``DiagonalGaussian``; noise is not included.

    Raises:
        ValueError: x and y of different length, NaN or infinity, or σ² not above 0.
        CholeskyError: the noise is below round-off.
    """
    check_finite(x=x, y=y, x_new=x_new)
    L = _root(kernel, noise, x, y)
    process = process_of(kernel)
    A = torch.linalg.solve_triangular(L, process(x, x_new), upper=False)
    white = _whitened(L, y)
    mean, beyond = torch.zeros_like(x_new[..., 0]), A[..., :0, :]
    if isinstance(kernel, MeanKernel):
        Q, R, S = _weights(kernel, L, x)
        # E β/s = R⁻¹Qᵀ(L⁻¹y; 0); the weights leave f* uncertain by BᵀB, B = R⁻ᵀ((sφ*)ᵀ − SᵀA).
        new = kernel.mean.scaled(x_new)
        b = torch.linalg.solve_triangular(R, (_pad(white, R)[..., None, :] @ Q).mT, upper=True)
        white, mean = white - (S @ b)[..., 0], (new @ b)[..., 0]
        beyond = torch.linalg.solve_triangular(R.mT, new.mT - S.mT @ A, upper=False)
    mean = mean + (white[..., None, :] @ A)[..., 0, :]
    if full_cov:
        covariance = process(x_new, x_new) - A.mT @ A + beyond.mT @ beyond
        return Gaussian(mean, covariance.expand(*mean.shape, mean.shape[-1]))
    prior = process.diag(x_new)
    # What the true difference cannot fall below, round-off does.
    floor = torch.finfo(prior.dtype).eps * prior.detach()
    variance = prior - A.square().sum(-2) + beyond.square().sum(-2)
    return DiagonalGaussian(mean, torch.maximum(variance, floor).expand(mean.shape))


def log_marginal_likelihood(
    kernel: Kernel,
    noise: Float[Tensor, "*#b"] | float,
    x: Float[Tensor, "*#b n d"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Bool[Tensor, "*#b n"] | None = None,
    weights: Float[Tensor, "*#b n"] | None = None,
) -> Float[Tensor, "*b"]:
    """Log N(y; 0, K_ff + σ²I) in nats, one per series.

    Args:
        kernel: prior covariance function.
        noise: σ², a number or one per series.
        x: inputs.
        y: targets; leading dimensions are independent series.
        mask: True at points that count; all if None.
        weights: what the noise of each point is divided by; one if None.

    Returns:
        The log evidence, differentiable in kernel and noise.

    Raises:
        ValueError: x and y of different length, or σ² not above 0.
        CholeskyError: the matrix holds NaN or infinity, or the noise is below round-off.
    """
    L = _root(kernel, noise, x, y, mask, weights)
    count = y.shape[-1] if mask is None else mask.sum(-1)
    y = y if mask is None else y.masked_fill(~mask, 0.0)
    alpha = _whitened(L, y)
    log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if isinstance(kernel, MeanKernel):
        # |K + ΦS²Φᵀ| = |K| |R|², and yᵀ(K + ΦS²Φᵀ)⁻¹y is the square of what the weights leave.
        Q, R, _ = _weights(kernel, L, x, mask)
        log_det = log_det + 2 * R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        alpha = _pad(alpha, R)
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
    """Cholesky factor of K_ff + σ²I without a mean; hidden points are independent, of unit size."""
    if x.ndim < 2 or y.ndim < 1 or x.shape[-2] != y.shape[-1]:
        raise ValueError(
            "x and y must have the shapes (..., n, d) and (..., n), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    noise = torch.as_tensor(noise, dtype=y.dtype, device=y.device)
    if not bool((noise > 0).all()):
        raise ValueError(f"noise must be a variance above 0, got {noise.tolist()}")
    covariance = process_of(kernel)(x, x)
    diagonal = noise[..., None].expand(*noise.shape, y.shape[-1])
    diagonal = diagonal if weights is None else diagonal / weights
    if mask is not None:
        covariance = covariance * (mask[..., None] & mask[..., None, :])
        diagonal = torch.where(mask, diagonal, torch.ones_like(diagonal))
    total = covariance + torch.diag_embed(diagonal)
    return safe_cholesky(total, jitter=torch.finfo(total.dtype).eps, max_tries=_JITTER_TRIES)


def _weights(
    kernel: MeanKernel, L: Tensor, x: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Q and R of (S; I) = QR, S = L⁻¹ΦS: the square root of the weights' precision I + SᵀS.

    K + ΦS²Φᵀ itself would lose the process beside a wide prior of the weights.
    """
    features = kernel.mean.scaled(x)
    if mask is not None:
        features = features * mask[..., None]
    S = torch.linalg.solve_triangular(
        L, features.expand(*L.shape[:-2], *features.shape[-2:]), upper=False
    )
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand(*S.shape[:-2], -1, -1)
    Q, R = torch.linalg.qr(torch.cat([S, eye], -2))
    return Q, R, S


def _pad(white: Tensor, R: Tensor) -> Tensor:
    return torch.nn.functional.pad(white, (0, R.shape[-1]))


def _whitened(L: Tensor, y: Tensor) -> Tensor:
    """L⁻¹y; series that share one factor are solved for together, without copies of it."""
    if L.ndim > 2:
        return torch.linalg.solve_triangular(L, y[..., None], upper=False)[..., 0]
    columns = y.reshape(-1, y.shape[-1]).mT
    return torch.linalg.solve_triangular(L, columns, upper=False).mT.reshape(y.shape)
