"""The exact Matérn filter as a layer: the cheaper baseline of the HiPPO layer."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ohsvgp.layers.base import Forecast, TimeLayer, time_kernel
from probseq.kernels import Matern12, Matern32, Matern52

_KERNELS = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}


class MaternLayer(TimeLayer):
    """State-space layer that is the exact filter of Matérn processes; experimental.

    Each head is a function f of time with a Matérn kernel of its own lengthscale and variance; the
    s = dim / H channels share the covariance. A token is an observation y_t of f(t) with precision
    λ_t, both linear in it but for a softplus, and its value a draw of f(t) given this token and
    those before. With z = (f, f'/κ, f''/κ²), κ = √(2ν)/ℓ, p = ν + ½ of these as the state,
    p² + ps numbers a head, a Kalman filter does that exactly (Hartikainen and Särkkä 2010):

        m⁻ = A m,   P⁻ = P∞ − A (P∞ − P) Aᵀ,   A = exp(FΔ),
        a = λ P⁻_ff,   m = m⁻ + λ/(1+a) P⁻_·f (y − m⁻_f)ᵀ,   P = P⁻ − λ/(1+a) P⁻_·f P⁻_f·.

    A loop over time in float64, O(T (p³ + p²s)) a head and sequence. What ``HiPPOLayer`` does
    nearly exactly for an RBF kernel, this does exactly and for less for a Matérn kernel.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        lengthscale: to start from, in the unit of the stamps: one number, or one a head.
        smoothness: ν: 0.5, 1.5 or 2.5.

    Raises:
        ValueError: a size, lengthscale or smoothness is out of range.

    Example:
        >>> import torch
        >>> from ohsvgp import MaternLayer
        >>> layer = MaternLayer(8, num_heads=2, lengthscale=torch.tensor([2.0, 10.0]))
        >>> values, kl = layer(torch.randn(3, 20, 8), times=torch.rand(20).cumsum(0))
        >>> values.shape, kl.shape
        (torch.Size([3, 20, 8]), torch.Size([]))
    """

    def __init__(
        self, dim: int, num_heads: int, *, lengthscale: float | Tensor, smoothness: float = 1.5
    ) -> None:
        super().__init__(dim, num_heads)
        if smoothness not in _KERNELS:
            raise ValueError(f"smoothness must be one of {tuple(_KERNELS)}, got {smoothness!r}")
        self.kernel = time_kernel(_KERNELS[smoothness], num_heads, lengthscale)

    def forecast(
        self,
        times: Float64[Tensor, " t"],
        y: Float[Tensor, "b t h s"],
        lam: Float[Tensor, "b t h"],
    ) -> Forecast:
        """Predict f(t) from the sites before t: see ``TimeLayer.forecast``."""
        kernel = self.kernel
        kappa = math.sqrt(2 * kernel.smoothness) / kernel.lengthscale.double()[..., 0, 0]
        gaps = torch.cat([times[:1], times.diff()])
        system = matern_system(kernel.smoothness, gaps[:, None] * kappa)
        prior = kernel.outputscale.double()[:, None, None] * system.stationary
        mean, variance = _filter(system.transition, prior, y.double(), lam.double())
        mean, variance = mean.to(y.dtype), variance.to(y.dtype)
        none = torch.zeros_like(variance)
        return Forecast(mean, variance, none, none)


class MaternSystem(NamedTuple):
    """Linear stochastic differential equation of a Matérn process of unit variance."""

    # A = exp(FΔ), E[z(t + Δ) | z(t)] = A z(t), shape (*b, p, p)
    transition: Float64[Tensor, "*b p p"]
    stationary: Float64[Tensor, "p p"]  # P∞, the covariance of z(t), shape (p, p)


def matern_system(smoothness: float, steps: Float64[Tensor, "*b"]) -> MaternSystem:
    """Return transition and covariance of z, the first p = ν + ½ of (f, f'/κ, f''/κ²), κ = √(2ν)/ℓ.

    F/κ is the companion matrix of (x + 1)^p, whose eigenvalues are all −1, so that N = F/κ + I has
    N^p = 0 and A = e^{−κΔ} Σ_{k<p} (κΔN)^k / k!.

    Args:
        smoothness: ν: 0.5, 1.5 or 2.5.
        steps: κΔ.
    """
    stationary = {
        0.5: [[1.0]],
        1.5: [[1.0, 0.0], [0.0, 1.0]],
        2.5: [[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]],
    }[smoothness]
    p = len(stationary)
    N = torch.eye(p) + torch.diag(torch.ones(p - 1), 1)
    N[-1] -= torch.tensor([math.comb(p, k) for k in range(p)])
    powers = [torch.linalg.matrix_power(N, k) / math.factorial(k) for k in range(p)]
    orders = torch.arange(p, device=steps.device)
    terms = (-steps).exp()[..., None] * steps[..., None] ** orders
    A = torch.einsum("...k,kij->...ij", terms, torch.stack(powers).to(steps))
    return MaternSystem(A, steps.new_tensor(stationary))


def _filter(
    A: Float64[Tensor, "t h p p"],
    prior: Float64[Tensor, "h p p"],
    y: Float64[Tensor, "b t h s"],
    lam: Float64[Tensor, "b t h"],
) -> tuple[Float64[Tensor, "b t h s"], Float64[Tensor, "b t h"]]:
    """Return mean and variance of f(t) given the sites before t, by a Kalman filter."""
    B, _, H, s = y.shape
    p = prior.shape[-1]
    m, known = y.new_zeros(B, H, p, s), y.new_zeros(B, H, p, p)  # P∞ − P
    means: list[Tensor] = []
    variances: list[Tensor] = []
    floor = torch.finfo(y.dtype).eps * prior[:, 0, 0].detach()
    for A_t, y_t, lam_t in zip(A, y.unbind(1), lam.unbind(1), strict=True):
        m, known = A_t @ m, A_t @ known @ A_t.mT
        column = prior[..., 0] - known[..., 0]  # P⁻_·f
        variance = torch.maximum(column[..., 0], floor)
        means.append(m[..., 0, :])
        variances.append(variance)
        # λ/(1+a) P⁻_·f
        gain = (lam_t / (1 + lam_t * variance))[..., None] * column
        m = m + gain[..., None] * (y_t - m[..., 0, :])[..., None, :]
        known = known + gain[..., None] * column[..., None, :]
    return torch.stack(means, 1), torch.stack(variances, 1)
