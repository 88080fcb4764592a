"""Kernels of processes that repeat themselves, and white noise.

NaN and infinity in a tensor reach the result.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.kernels.base import ARDKernel, Constant, Kernel, Spectrum, log_parameter

__all__ = ["Periodic", "SpectralMixture", "White"]


class Periodic(ARDKernel):
    """σ_f² exp(−2 Σ_j sin²(π(x_j − z_j)/p_j)/ℓ_j²): functions of period p (MacKay 1998).

    ℓ is counted in radians of the period: about pℓ/2π of the input is one RBF lengthscale. Times
    an ``RBF`` it is locally periodic: the pattern changes from period to period.

    Args:
        dim: number of input dimensions d.
        batch_shape: shape of a batch of independent kernels, e.g. ``(num_heads,)``.
        period: initial value of p in units of the inputs, broadcast to (*batch_shape, 1, dim).
        lengthscale: initial value of ℓ, broadcast to (*batch_shape, 1, dim).
        outputscale: initial value of the variance σ_f², broadcast to (*batch_shape).
    """

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        period: float | Tensor = 1.0,
        lengthscale: float | Tensor = 1.0,
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__(
            dim, batch_shape=batch_shape, lengthscale=lengthscale, outputscale=outputscale
        )
        self.raw_period = log_parameter("period", period, (*batch_shape, 1, dim))

    @property
    def period(self) -> Float[Tensor, "*heads 1 d"]:
        """The period p, one per head and input dimension."""
        return self.raw_period.exp()

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Return p ℓ/2π, and p/2π where ℓ is above one: then f is nearly a sine."""
        return self.period * self.lengthscale.clamp_max(1.0) / (2 * math.pi)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return the band up to the harmonic n beyond which lines have less than the share.

        Line n has the weight e^(−a) I_n(a), a = ℓ^(−2): the law of a difference of two Poisson
        variables of mean a/2, whose tail is at most 2 exp(√(a² + n²) − a − n asinh(n/a)).
        """
        a = float(self.lengthscale.detach().min()) ** -2
        n = torch.arange(1, 20 + math.ceil(12 * math.sqrt(a)), dtype=torch.float64)
        tail = (a * a + n * n).sqrt() - a - n * torch.asinh(n / a)
        least = int((tail > math.log(share / 2)).sum()) + 1
        return [Spectrum(2 * math.pi * least / float(self.period.detach().min()))]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        # One dimension at a time, so that no tensor of shape (n, m, d) is made.
        exponent = x.new_zeros(())
        phase, inverse = math.pi / self.period, self.lengthscale.square().reciprocal()
        for j in range(self.dim):
            a, b = x[..., j] * phase[..., j], z[..., j] * phase[..., j]
            sine = (a[..., :, None] - b[..., None, :]).sin()
            exponent = exponent - 2 * sine.square() * inverse[..., j, None]
        return self.outputscale[..., None, None] * exponent.exp()


class SpectralMixture(Kernel):
    """Σ_q w_q Π_j exp(−2π² σ_qj² τ_j²) cos(2π μ_qj τ_j), τ = x − z (Wilson and Adams 2013).

    The spectrum is a mixture of normal densities; any stationary kernel is a limit of these.

    Args:
        dim: number of input dimensions d.
        num_components: Q.
        batch_shape: shape of a batch of independent kernels, e.g. ``(num_heads,)``.
        weight: initial variances w, broadcast to (*batch_shape, Q).
        mean: initial frequencies μ in cycles per unit, broadcast to (*batch_shape, Q, dim); if
            None, 1/2Q, 3/2Q, … .
        deviation: initial spread σ of the frequencies, broadcast to (*batch_shape, Q, dim).
    """

    def __init__(
        self,
        dim: int,
        num_components: int = 4,
        *,
        batch_shape: tuple[int, ...] = (),
        weight: float | Tensor = 1.0,
        mean: float | Tensor | None = None,
        deviation: float | Tensor = 1.0,
    ) -> None:
        super().__init__(dim, batch_shape=batch_shape)
        check_counts(num_components=num_components)
        self.num_components = num_components
        if mean is None:
            mean = ((torch.arange(num_components) + 0.5) / num_components)[:, None]
        shape = (*batch_shape, num_components)
        self.raw_weight = log_parameter("weight", weight, shape)
        self.raw_mean = log_parameter("mean", mean, (*shape, dim))
        self.raw_deviation = log_parameter("deviation", deviation, (*shape, dim))

    @property
    def weight(self) -> Float[Tensor, "*heads q"]:
        """The variance w of each component."""
        return self.raw_weight.exp()

    @property
    def mean(self) -> Float[Tensor, "*heads q d"]:
        """The frequencies μ in cycles per unit."""
        return self.raw_mean.exp()

    @property
    def deviation(self) -> Float[Tensor, "*heads q d"]:
        """The spread σ of the frequencies."""
        return self.raw_deviation.exp()

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """The least over components of 1/2π√(μ² + σ²)."""
        frequency = (self.mean.square() + self.deviation.square()).sqrt()
        return (2 * math.pi * frequency).reciprocal().amin(-2, keepdim=True)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return the band of the fastest component."""
        reach = math.sqrt(2 * math.log(2 / share))
        return [Spectrum(2 * math.pi * float((self.mean + reach * self.deviation).detach().max()))]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        # With a leading dimension of components, one dimension of the inputs at a time.
        total = self.weight[..., :, None, None]
        for j in range(self.dim):
            tau = (x[..., :, None, j] - z[..., None, :, j])[..., None, :, :]
            mean, deviation = (p[..., j, None, None] for p in (self.mean, self.deviation))
            decay = (-2 * (math.pi * deviation * tau).square()).exp()
            total = total * decay * (2 * math.pi * mean * tau).cos()
        return total.sum(-3)

    def _variance(self, x: Tensor) -> Tensor:
        return torch.broadcast_tensors(self.weight.sum(-1)[..., None], x[..., 0])[0]


class White(Constant):
    """σ_f² where x = z, else 0: a value of its own at each input; see ``Constant``.

    Beside a Gaussian likelihood it is more noise. No inducing variable sees it: what it was at an
    input is not remembered, and each observation of one input has its own.
    """

    @property
    def continuous(self) -> Kernel | None:
        """Nothing."""
        return None

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return no terms: a quadrature has none to resolve."""
        return []

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        same = (x[..., :, None, :] == z[..., None, :, :]).all(-1)
        return self.outputscale[..., None, None] * same
