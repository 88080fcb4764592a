"""Counts whose variance is their mean."""

import torch
from torch import Tensor

from ohsvgp.likelihoods.base import Expectations
from ohsvgp.likelihoods.counts import FLANK, Arrival, CountLikelihood, bounded_exp
from ohsvgp.likelihoods.quadrature import Derivatives
from ohsvgp.likelihoods.quantiles import exp_remainder, stirling
from probseq.gaussians import DiagonalGaussian


class Poisson(CountLikelihood):
    """Y ~ Poisson(exp f); expectations are in closed form, E[exp f] = exp(mean + variance/2).

    Counts of many thousands know f so precisely that M variables seldom hold it: take a
    ``Gaussian`` of their logarithms, whose noise is fitted.
    """

    def derivatives(self, f: Tensor, y: Tensor) -> Derivatives:
        """Return y f − exp f − log y!, and its derivatives."""
        rate = bounded_exp(f)
        return Derivatives(y * f - rate - (y + 1).lgamma(), y - rate, -rate)

    def expectations(self, mean: Tensor, variance: Tensor, y: Tensor) -> Expectations:
        """Return the closed form: g = y − E[exp f], w = E[exp f]."""
        rate = bounded_exp(mean + 0.5 * variance)
        return Expectations(y * mean - rate - (y + 1).lgamma(), y - rate, rate)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> DiagonalGaussian:
        """Return E[exp f], and E[exp f] + Var[exp f]."""
        rate = bounded_exp(mean + 0.5 * variance)
        return DiagonalGaussian(rate, rate + rate.square() * variance.expm1())

    def arrival(self, y: Tensor) -> Arrival:
        """Return that of the log time of event y + 1 at rate one, Gamma of shape y + 1."""
        a = y + 1

        def log_density(w: Tensor) -> Tensor:
            # a t − exp t − log Γ(a) at t = log a + w.
            return stirling(a) - a * exp_remainder(w)

        return Arrival(a.log(), a.rsqrt(), FLANK / a, log_density)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw counts of mean exp(f)."""
        return torch.poisson(bounded_exp(f), generator=generator)
