"""Binary labels."""

import math

import torch
from torch import Tensor

from ohsvgp.likelihoods.quadrature import Derivatives, QuadratureLikelihood
from ohsvgp.likelihoods.quantiles import probabilities
from probseq.gaussians import DiagonalGaussian


class Bernoulli(QuadratureLikelihood):
    """P(y = 1 | f) = Φ(f), the probit link; labels are 0 and 1.

    The thesis does not name its link. With the probit one, predictive probabilities are in closed
    form, ∫ Φ(f) N(f; m, v) df = Φ(m/√(1 + v)), exact in both tails.
    """

    continuous = False

    def derivatives(self, f: Tensor, y: Tensor) -> Derivatives:
        """Return log Φ(z), z = ±f; the slope φ(z)/Φ(z) grows linearly where the label is wrong."""
        sign = 2 * y - 1
        z = sign * f
        value = torch.special.log_ndtr(z)
        slope = math.sqrt(2 / math.pi) / torch.special.erfcx(-z / math.sqrt(2))
        # In (0, 1); the sum of two large numbers loses its digits for z far below zero.
        curvature = (slope * (slope + z)).clamp(0, 1)
        return Derivatives(value, sign * slope, -curvature)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log Φ(±mean/√(1 + variance))."""
        return torch.special.log_ndtr((2 * y - 1) * mean / (1 + variance).sqrt())

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> DiagonalGaussian:
        """Return P(y = 1) = Φ(mean/√(1 + variance)) and the variance p(1 − p) of a label."""
        z = mean / (1 + variance).sqrt()
        p = torch.special.ndtr(z)
        return DiagonalGaussian(p, p * torch.special.ndtr(-z))

    def predictive_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return P(Y = 0) = Φ(−mean/√(1 + variance)) from 0 on, 1 from 1 on."""
        zero = torch.special.ndtr(-mean / (1 + variance).sqrt())
        return torch.where(y < 0, 0.0, torch.where(y < 1, zero, 1.0))

    @torch.no_grad()
    def quantile(self, mean: Tensor, variance: Tensor, p: float | Tensor) -> Tensor:
        """Return 1 where P(Y = 0) < p, else 0."""
        levels = probabilities(p, mean)
        return (self.predictive_cdf(mean, variance, torch.zeros_like(mean)) < levels).to(mean)

    @torch.no_grad()
    def predictive_crps(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return (P(y = 1) − y)²: the distribution function has one step between 0 and 1."""
        return (self.predictive_moments(mean, variance).mean - y).square()

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw labels with probability Φ(f)."""
        return torch.bernoulli(torch.special.ndtr(f), generator=generator)

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but 0 and 1."""
        wrong = y[(y != 0) & (y != 1)]
        if wrong.numel():
            raise ValueError(f"y must hold labels 0 and 1 for Bernoulli, got {float(wrong[0])}")
