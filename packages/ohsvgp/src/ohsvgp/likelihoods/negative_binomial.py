"""Counts that vary more than their mean."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ohsvgp.likelihoods.counts import FLANK, Arrival, CountLikelihood, bounded_exp
from ohsvgp.likelihoods.quadrature import Derivatives
from ohsvgp.likelihoods.quantiles import stirling
from probseq.gaussians import DiagonalGaussian
from probseq.kernels.base import DataUnits, Limits, log_parameter


class NegativeBinomial(CountLikelihood):
    """Negative binomial counts of mean μ = exp(f) and variance μ + μ²/r.

    p(y | f) = Γ(y + r)/(Γ(r) y!) · (r/(μ + r))^r · (μ/(μ + r))^y; Poisson as r → ∞.

    For counts of many thousands take a ``Gaussian`` of their logarithms, as with ``Poisson``.

    r, ``dispersion``, is a number or one per series.
    """

    def __init__(self, dispersion: float | Tensor = 10.0) -> None:
        super().__init__()
        self.raw_dispersion = log_parameter("dispersion", dispersion)

    @property
    def dispersion(self) -> Float[Tensor, "*b"]:
        """The number r."""
        return self.raw_dispersion.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return that of r; small ones explain any zeros of few counts by a tail without end."""
        return {
            "raw_dispersion": Limits(
                units.least.new_tensor(1e-2), units.least.new_tensor(1e6), (3.0, 3.0)
            )
        }

    def derivatives(self, f: Tensor, y: Tensor) -> Derivatives:
        """Return −y·softplus(−t) − r·softplus(t) + const., t = f − log r, and its slopes."""
        r = self.dispersion[..., None]
        t = f - self.raw_dispersion[..., None]
        # In float64: for many r the first two are large and all but equal.
        wide, count = r.double(), y.double()
        constant = ((count + wide).lgamma() - wide.lgamma() - (count + 1).lgamma()).to(y.dtype)
        p = t.sigmoid()
        slope = (y + r) * p
        value = constant - y * softplus(-t) - r * softplus(t)
        return Derivatives(value, y - slope, slope * (p - 1))

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> DiagonalGaussian:
        """Return E[μ], and E[μ + μ²/r] + Var[μ], of the log-normal μ."""
        rate = bounded_exp(mean + 0.5 * variance)
        excess = variance.expm1() + bounded_exp(variance) / self.dispersion[..., None]
        return DiagonalGaussian(rate, rate + rate.square() * excess)

    def arrival(self, y: Tensor) -> Arrival:
        """Return that of log(r A/B), A and B Gamma of shapes y + 1 and r."""
        r, a = self.dispersion[..., None], y + 1

        def log_density(w: Tensor) -> Tensor:
            # a t − (a + r) softplus(t) − log B(a, r) at t = log(a/r) + w, which is the same with
            # −t for t and a for r: the smaller one outside, so that no large terms cancel.
            less = torch.minimum(a, r)
            u = torch.where(a < r, -w, w)
            shrunk = (less / (a + r) * (-u).clamp_max(300.0).expm1()).log1p()
            return stirling(a) + stirling(r) - stirling(a + r) - less * u - (a + r) * shrunk

        width = (1 / a + 1 / r).sqrt()
        return Arrival(a.log(), width, FLANK / a + FLANK / r, log_density)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw Poisson counts of a rate that is Gamma of shape r and mean exp(f)."""
        shape = self.dispersion[..., None].expand(f.shape)
        # torch.distributions takes no generator; the function that it calls does.
        draw = torch._standard_gamma  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        gamma = draw(shape, generator=generator)
        return torch.poisson(gamma * bounded_exp(f - self.raw_dispersion[..., None]), generator)
