"""Gaussian noise."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.likelihoods.base import Expectations, Likelihood
from ohsvgp.likelihoods.quantiles import folded_mean, probabilities
from probseq.gaussians import DiagonalGaussian
from probseq.kernels.base import DataUnits, Limits, log_parameter


class Gaussian(Likelihood):
    """y = f + ε, ε ~ N(0, σ²); updates are in closed form.

    σ², ``noise``, is a number or one per series.
    """

    def __init__(self, noise: float | Tensor = 0.1) -> None:
        super().__init__()
        self.raw_noise = log_parameter("noise", noise)

    @property
    def noise(self) -> Float[Tensor, "*b"]:
        """σ²."""
        return self.raw_noise.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return that of σ²: zeros would take it to zero."""
        return {"raw_noise": Limits(1e-6 * units.least, 10 * units.most)}

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log N(y; f, σ²)."""
        noise = self.noise[..., None]
        return -0.5 * ((y - f).square() / noise + (2 * math.pi * noise).log())

    def expectations(self, mean: Tensor, variance: Tensor, y: Tensor) -> Expectations:
        """Return the closed form: g = (y − mean)/σ², w = 1/σ²."""
        noise = self.noise[..., None]
        log_prob = self.log_prob(mean, y) - 0.5 * variance / noise
        gradient = (y - mean) / noise
        return Expectations(log_prob, gradient, (1 / noise).expand(gradient.shape))

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return log N(y; mean, variance + σ²)."""
        total = variance + self.noise[..., None]
        return -0.5 * ((y - mean).square() / total + (2 * math.pi * total).log())

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> DiagonalGaussian:
        """Return N(mean, variance + σ²)."""
        return DiagonalGaussian(mean, variance + self.noise[..., None])

    def predictive_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return Φ((y − mean)/√(variance + σ²))."""
        return torch.special.ndtr((y - mean) / (variance + self.noise[..., None]).sqrt())

    @torch.no_grad()
    def quantile(self, mean: Tensor, variance: Tensor, p: float | Tensor) -> Tensor:
        """Return mean + √(variance + σ²) Φ⁻¹(p)."""
        z = torch.special.ndtri(probabilities(p, mean))
        return mean + (variance + self.noise[..., None]).sqrt() * z

    @torch.no_grad()
    def predictive_crps(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π), z = (y − mean)/σ, of σ² = variance + noise."""
        sd = (variance + self.noise[..., None]).sqrt()
        return folded_mean(y - mean, sd) - sd / math.sqrt(math.pi)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw f + ε."""
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + self.noise[..., None].sqrt() * noise
