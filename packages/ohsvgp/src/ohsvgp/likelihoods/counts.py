"""What likelihoods of counts with a logarithmic link share."""

import math

import torch
from torch import Tensor

from ohsvgp.likelihoods.quadrature import QuadratureLikelihood, log_integral, positive_root

__all__ = ["CountLikelihood", "bounded_exp"]

# exp(−½ 8.7²) is round-off of 1 in float64.
_REACH = 8.7
_NEWTON_STEPS = 60
# Standard deviations that the centre of a rule may lie beside the peak.
_SETTLED = 1e-3


class CountLikelihood(QuadratureLikelihood):
    """Counts 0, 1, 2, … of mean exp(f)."""

    def start(self, y: Tensor) -> Tensor:
        """At the likelihood's peak: from far below it, a step of length one ends far above it."""
        return (y + 0.5).log()

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """By a trapezoidal rule around the integrand's peak, exact however narrow that is."""
        mean, variance, y = torch.broadcast_tensors(mean, positive_root(variance).square(), y)
        with torch.no_grad():
            centre, scale = self._peak(mean, variance, y)

        def log_integrand(f: Tensor) -> Tensor:
            residual = (f - mean).square() / variance
            return self.log_prob(f, y) - 0.5 * (residual + (2 * math.pi * variance).log())

        # Log-concavity bounds the integrand by a Gaussian of N(f)'s width around its peak.
        return log_integral(log_integrand, centre, scale, _REACH * variance.detach().sqrt())

    def _peak(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mode of p(y | f) N(f; mean, variance), and the standard deviation by its curvature."""
        # The mode f = mean + variance·slope(f) lies between these, because the slope falls in f.
        other = mean + variance * self.derivatives(mean, y).first
        low, high = torch.minimum(mean, other), torch.maximum(mean, other)
        f = self.start(y).clamp(low, high)
        curvature, moved = 1 / variance, high - low
        for _ in range(_NEWTON_STEPS):
            _, first, second = self.derivatives(f, y)
            slope = first - (f - mean) / variance
            low, high = torch.where(slope > 0, f, low), torch.where(slope > 0, high, f)
            curvature = 1 / variance - second
            step = f + slope / curvature
            # On the exponential's flank Newton steps are of length one, inside the bracket for
            # ever: those that are not half as long as the last give way to bisection.
            poor = (step < low) | (step > high) | ((step - f).abs() > 0.5 * moved)
            step = torch.where(poor, 0.5 * (low + high), step)
            f, moved = step, (step - f).abs()
            if bool((moved <= _SETTLED * curvature.rsqrt()).all()):
                break
        return f, curvature.rsqrt()

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but non-negative integers.

        Raises:
            ValueError: names the first such target.
        """
        wrong = y[~((y >= 0) & (y == y.floor()) & y.isfinite())]
        if wrong.numel():
            raise ValueError(
                f"y must hold counts 0, 1, 2, … for {type(self).__name__}, got {float(wrong[0])}"
            )


def bounded_exp(x: Tensor) -> Tensor:
    """The exponential, held at the root of the largest number so that its square is finite."""
    return x.clamp_max(0.49 * math.log(torch.finfo(x.dtype).max)).exp()
