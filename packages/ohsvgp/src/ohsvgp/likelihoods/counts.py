"""The base of likelihoods of counts with a logarithmic link."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ohsvgp.likelihoods.quadrature import QuadratureLikelihood, log_integral, positive_root
from ohsvgp.likelihoods.quantiles import invert, log_odds, probabilities

# exp(−½ 8.7²) is round-off of 1 in float64.
_GAUSSIAN_ENDS = 8.7
# exp(−37) is.
FLANK = 37.0
_POINT = 1e-6
# Edges of a millionth of the width beside flanks of many widths.
_HALF_NODES, _NEWTON_STEPS = 192, 60
# Of sums over counts: terms that are taken one by one, so many at a time; nodes of the integral
# over the others; and the probability that may lie on either side of it.
_EXACT, _ROWS, _LEGENDRE = 128, 32, 48
_TAIL = 1e-9
# Standard deviations that the centre of a rule may lie beside the peak.
_SETTLED = 1e-3


class Arrival(NamedTuple):
    """Distribution of a real number with a log-concave density."""

    mode: Tensor  # where the density is largest
    width: Tensor  # one over the root of its logarithm's curvature there
    tail: Tensor  # distance from the mode beyond which nothing is left of exponential flanks
    log_density: Callable[[Tensor], Tensor]  # of numbers less the mode


class CountLikelihood(QuadratureLikelihood):
    """Counts 0, 1, 2, … of mean exp(f)."""

    continuous = False

    def start(self, y: Tensor) -> Tensor:
        """Return the likelihood's peak: from far below it, a step of length one ends far above."""
        return (y + 0.5).log()

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Integrate by a trapezoidal rule around the integrand's peak, however narrow."""
        mean, variance, y = torch.broadcast_tensors(mean, positive_root(variance).square(), y)
        with torch.no_grad():
            centre, scale = self._peak(mean, variance, y)

        def log_integrand(f: Tensor) -> Tensor:
            residual = (f - mean).square() / variance
            return self.log_prob(f, y) - 0.5 * (residual + (2 * math.pi * variance).log())

        # Log-concavity bounds the integrand by a Gaussian of N(f)'s width around its peak.
        return log_integral(log_integrand, centre, scale, _GAUSSIAN_ENDS * variance.detach().sqrt())

    def _peak(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mode of p(y | f) N(f; mean, variance), and its width by the curvature."""
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

    @abstractmethod
    def arrival(self, y: Tensor) -> "Arrival":
        """Return T's distribution: at most y events come by f where the next is later, T > f."""

    def predictive_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return P(T > f), f ~ N(mean, variance): the mixture of Φ((T − mean)/√variance) over T."""
        mean, variance, y = torch.broadcast_tensors(mean, variance, y)
        log_odds_of = self._log_odds(mean, variance, y.floor().clamp_min(0))
        return torch.where(y < 0, 0.0, log_odds_of.sigmoid())

    @torch.no_grad()
    def quantile(self, mean: Tensor, variance: Tensor, p: float | Tensor) -> Tensor:
        """Solve for a count between whole ones, for which T exists too; take the next whole one."""
        mean, variance, levels = torch.broadcast_tensors(mean, variance, probabilities(p, mean))
        target = log_odds(levels.log())
        z = invert(lambda z: self._log_odds(mean, variance, z.expm1()), target)
        # The root lies in (k − 1, k]; round-off may have taken it across a whole number.
        y = (z.expm1() - 0.5).round().clamp_min(0)
        return y + (self._log_odds(mean, variance, y) < target)

    @torch.no_grad()
    def predictive_crps(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Sum (P(Y ≤ k) − 1{y ≤ k})² over k: below 128 by term, from there on by an integral."""
        mean, variance, y = torch.broadcast_tensors(mean, variance, y)
        # Outside of these F is 0 and 1.
        ends = (self.quantile(mean, variance, p) for p in (_TAIL, 1 - _TAIL))
        low, high = (end.clamp_min(_EXACT - 0.5) for end in ends)
        column = (-1, *(1,) * y.ndim)
        k = torch.arange(_EXACT, dtype=y.dtype, device=y.device).view(column)
        cdf = torch.cat([self.predictive_cdf(mean, variance, rows) for rows in k.split(_ROWS)])
        first = (cdf - (y <= k).to(y)).square().sum(0)
        if not bool((torch.maximum(high, y) >= _EXACT).any()):
            return first
        # Of G = F² up to the cut y − ½ and G = (1 − F)² behind it, for whole a and b (Euler and
        # Maclaurin): G(a) + … + G(b) = ∫ G − (G'(b + ½) − G'(a − ½))/24, from a − ½ to b + ½.
        start = torch.full_like(y, _EXACT - 0.5)
        cut = torch.maximum(y - 0.5, start)
        nodes, weights = (
            torch.from_numpy(array).to(y).view(column)
            for array in np.polynomial.legendre.leggauss(_LEGENDRE)
        )

        def integral(sign: int, start: Tensor, end: Tensor) -> Tensor:
            # Over log k: variances of f make tails of k that are long beside their beginning.
            half = 0.5 * (end / start).log()
            k = start * (half * (1 + nodes)).exp()
            share = (sign * self._log_odds(mean, variance, k)).sigmoid()
            return half * (weights * k * share.square()).sum(0)

        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            below, above = (self.predictive_cdf(mean, variance, x + side) for side in (-0.5, 0.5))
            return 0.5 * (below + above), above - below

        left = integral(1, low.minimum(cut), high.minimum(cut)) + (cut - high).clamp_min(0)
        right = integral(-1, low.maximum(cut), high.maximum(cut)) + (low - cut).clamp_min(0)
        (F, slope), (_, slope_cut) = step(start), step(cut)
        slopes = torch.where(cut > start, slope_cut - F * slope, (1 - F) * slope)
        return first + left + right - slopes / 12

    def _log_odds(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log P(Y ≤ y) − log P(Y > y), y ≥ 0."""
        T = self.arrival(y)
        # A Gaussian so much narrower than T's distribution is a point.
        deviation = torch.maximum(positive_root(variance), _POINT * T.width)
        # The tail that does not hold the mode has its peak between the mode and the mean.
        sign = torch.where(mean > T.mode, 1.0, -1.0)

        def log_integrand(w: Tensor) -> Tensor:
            # Of ∫ p(T) Φ(±(T − mean)/√variance) dT, w = T less its mode.
            edge = sign * (w + (T.mode - mean)) / deviation
            return T.log_density(w) + torch.special.log_ndtr(edge)

        narrow = T.width.square() + deviation.square()
        centre = (mean - T.mode) * T.width.square() / narrow
        scale = T.width * deviation * narrow.rsqrt()
        reach = (mean - T.mode).abs() + _GAUSSIAN_ENDS * (deviation + T.width) + T.tail
        constants = (constant.detach() for constant in (centre, scale, reach))
        tail = log_integral(log_integrand, *constants, half_nodes=_HALF_NODES)
        return sign * log_odds(tail)

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but non-negative integers."""
        wrong = y[~((y >= 0) & (y == y.floor()) & y.isfinite())]
        if wrong.numel():
            raise ValueError(
                f"y must hold counts 0, 1, 2, … for {type(self).__name__}, got {float(wrong[0])}"
            )


def bounded_exp(x: Tensor) -> Tensor:
    """Return the exponential, held at the root of the largest number: its square is finite."""
    return x.clamp_max(0.49 * math.log(torch.finfo(x.dtype).max)).exp()
