"""Stationary kernels: functions of the scaled distance r² = Σ_j (x_j − z_j)²/ℓ_j².

NaN and infinity in a tensor reach the result.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.kernels.base import ARDKernel, DataUnits, Limits, Spectrum, log_parameter
from probseq.kernels.distances import scaled_squared_distance

# exp2 and not exp: on a CPU exp is many times slower where the result underflows, as most entries
# of a covariance matrix with short lengthscales do.
_LOG2_E = math.log2(math.e)


def _radial12(u: Tensor) -> Tensor:
    """Return exp(−√u), with derivative zero at u = 0 instead of minus infinity."""
    # Below the floor exp(−√u) rounds to one; clamp_min passes no gradient there.
    floor = (torch.finfo(u.dtype).eps / 8) ** 2
    return torch.exp2(-_LOG2_E * u.clamp_min(floor).sqrt())


class _Radial32(torch.autograd.Function):
    """m(u) = (1 + √u) exp(−√u); m'(u) = −½ exp(−√u), without the 0/0 of the chain rule."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        s = u.sqrt()
        return (1 + s) * torch.exp2(-_LOG2_E * s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grads[0] * (-1 / 2) * _radial12(u)


class _Radial52(torch.autograd.Function):
    """m(u) = (1 + √u + u/3) exp(−√u); m'(u) = −(1/6)(1 + √u) exp(−√u)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        s = u.sqrt()
        return (1 + s + u / 3) * torch.exp2(-_LOG2_E * s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grads[0] * (-1 / 6) * _Radial32.apply(u)


class StationaryKernel(ARDKernel):
    """A kernel of the scaled distance alone; see ``ARDKernel`` for the arguments."""

    # ν of the Matérn family, infinity for the squared exponential. It names the spectral density
    # that random Fourier features are drawn from
    smoothness: ClassVar[float]

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return a Matérn factor, or for RBF the band of a normal spectrum with deviation 1/ℓ."""
        ell = float(self.lengthscale.detach().min())
        if math.isfinite(self.smoothness):
            return [Spectrum(0.0, ((self.smoothness, ell),))]
        return [Spectrum(-NormalDist().inv_cdf(share / 2) / ell)]

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return those of ℓ and σ_f²."""
        return super().limits(units) | {"raw_lengthscale": Limits(units.gap, units.span)}


class RBF(StationaryKernel):
    """Squared exponential kernel σ_f² exp(−r²/2); see ``ARDKernel`` for the arguments."""

    smoothness = math.inf

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        scale = math.sqrt(_LOG2_E / 2) / self.lengthscale
        distance = scaled_squared_distance(x, z, scale, exact=False)  # log2(e) r²/2
        if not distance.requires_grad:
            # The square root of the smallest normal number is zero beside a variance, and denormal
            # numbers, of which products with smaller ones are made, take ten times the time.
            distance.clamp_max_(-0.5 * math.log2(torch.finfo(distance.dtype).tiny))
        return self.outputscale[..., None, None] * torch.exp2(-distance)


class _Matern(StationaryKernel):
    """σ_f² m(2ν r²)."""

    _radial: ClassVar[Callable[..., Any]]  # m

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        scale = math.sqrt(2 * self.smoothness) / self.lengthscale
        distance = scaled_squared_distance(x, z, scale, exact=True)
        return self.outputscale[..., None, None] * self._radial(distance)


class Matern12(_Matern):
    """Matérn kernel of smoothness 1/2, σ_f² exp(−r); see ``ARDKernel`` for the arguments."""

    smoothness = 0.5
    _radial = staticmethod(_radial12)


class Walk(Matern12):
    """A level that wanders: `Matern12` whose lengthscale, a thousand steps, is not learned.

    Over lags that data see it is a random walk from an unknown level, of variance 2σ_f²/1000 a
    step: forecasts stay where the series is, and do not turn back to its mean. ``step`` is the
    distance of the stamps of a series.
    """

    def __init__(
        self, dim: int = 1, *, step: float | Tensor = 1.0, outputscale: float | Tensor = 1.0
    ) -> None:
        ones = torch.ones_like(step) if isinstance(step, Tensor) else 1.0
        super().__init__(dim, lengthscale=ones, outputscale=outputscale)
        self.set_step(step)
        self.raw_lengthscale.requires_grad_(False)

    def set_step(self, step: float | Tensor) -> None:
        """Set the lengthscale to a thousand steps; raise ValueError unless they are positive."""
        log_step = log_parameter("step", step, tuple(self.raw_lengthscale.shape))
        with torch.no_grad():
            self.raw_lengthscale.copy_(log_step + math.log(1000.0))

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return those of a kernel, and a prior by which a step has 1/20 of the steps' squares.

        A short series is often explained by swings about a mean just as well, to which forecasts
        would then turn back.
        """
        low, high, *_ = units.variance
        # A step of h has the variance 2σ²h/ℓ, which is .05 of its mean square, rate · h.
        median = 0.05 * units.rate * 0.5 * self.lengthscale.detach().max()
        prior = (float(median.clamp(low.max(), high.min())), 3.0)
        return super().limits(units) | {"raw_outputscale": Limits(low, high, prior)}


class Matern32(_Matern):
    """Matérn kernel of smoothness 3/2: σ_f² (1 + √3 r) exp(−√3 r); as ``ARDKernel``."""

    smoothness = 1.5
    _radial = _Radial32.apply


class Matern52(_Matern):
    """Matérn kernel of smoothness 5/2: σ_f² (1 + √5 r + 5r²/3) exp(−√5 r); as ``ARDKernel``."""

    smoothness = 2.5
    _radial = _Radial52.apply


class RationalQuadratic(ARDKernel):
    """σ_f² (1 + r²/2α)^(−α): RBF kernels of all lengthscales about ℓ, the wider the smaller α.

    Arguments are those of ``ARDKernel``, and ``alpha``, the initial value of α, broadcast to
    (*batch_shape).
    """

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        alpha: float | Tensor = 1.0,
        lengthscale: float | Tensor = 1.0,
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__(
            dim, batch_shape=batch_shape, lengthscale=lengthscale, outputscale=outputscale
        )
        self.raw_alpha = log_parameter("alpha", alpha, self.batch_shape)

    @property
    def alpha(self) -> Float[Tensor, "*heads"]:
        """α, one per head."""
        return self.raw_alpha.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return those of ℓ, σ_f² and α."""
        shape = Limits(units.gap.new_tensor(1e-2), units.gap.new_tensor(1e3))
        length = Limits(units.gap, units.span)
        return super().limits(units) | {"raw_lengthscale": length, "raw_alpha": shape}

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return a band by Chernoff's bound of a normal spectrum with a gamma distributed variance.

        E exp(λω) = (1 − λ²ℓ^(−2)/2α)^(−α), so that with λ = √(2α) θℓ, 0 < θ < 1,
        P(|ω| > w) ≤ 2 (1 − θ²)^(−α) exp(−√(2α) θℓ w).
        """
        ell = float(self.lengthscale.detach().min())
        alpha = float(self.alpha.detach().min())
        theta = torch.arange(1, 100, dtype=torch.float64) / 100
        w = (math.log(2 / share) - alpha * torch.log1p(-theta.square())) / theta
        return [Spectrum(float(w.min()) / (math.sqrt(2 * alpha) * ell))]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        # (1 + r²/2α)^(−α) = exp(−α log(1 + r²/2α)).
        alpha = self.alpha[..., None, None]
        scale = 1 / self.lengthscale
        distance = scaled_squared_distance(x, z, scale, exact=False)
        decay = torch.exp(-alpha * torch.log1p(distance / (2 * alpha)))
        return self.outputscale[..., None, None] * decay
