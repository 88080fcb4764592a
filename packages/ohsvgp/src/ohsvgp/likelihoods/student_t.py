"""Noise with heavy tails."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.likelihoods.base import Expectations, Likelihood
from ohsvgp.likelihoods.quadrature import log_integral
from ohsvgp.likelihoods.quantiles import folded_mean, invert, log_odds, probabilities
from probseq.gaussians import DiagonalGaussian
from probseq.kernels.base import DataUnits, Limits, log_parameter

# Of the trapezoidal rule for expectations: their error stays below 1e-9 for |y − f| up to 1e6
# scales, and below 1e-12 up to 1e3.
_NUM_NODES = 96
_FIRST, _LAST = math.log(1e-7), math.log(40.0)
# exp(−37) is round-off of 1 in float64.
_DECAY = 37.0
# Of the rule for mixtures over log τ.
_NUM_SCALES = 160


class StudentT(Likelihood):
    """y = f + s ε, ε of Student's t distribution with ν degrees of freedom.

    Log p is not concave in f, so w = −E[l''] is negative where y is an outlier; the update cuts
    what would widen q(v) (see ``ohsvgp.inference.natural``).

    ν, ``df``, and s, ``scale``, are numbers or one per series.
    """

    def __init__(self, df: float | Tensor = 4.0, scale: float | Tensor = 0.1) -> None:
        super().__init__()
        self.raw_df = log_parameter("df", df)
        self.raw_scale = log_parameter("scale", scale)

    @property
    def df(self) -> Float[Tensor, "*b"]:
        """ν."""
        return self.raw_df.exp()

    @property
    def scale(self) -> Float[Tensor, "*b"]:
        """The scale s; the noise variance is s² ν/(ν − 2) for ν > 2."""
        return self.raw_scale.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return those of ν, of which targets without outliers say nothing, and s."""
        scale = Limits(1e-3 * units.least.sqrt(), (10 * units.most).sqrt())
        df = Limits(units.least.new_tensor(2.1), units.least.new_tensor(1e3))
        return {"raw_df": df, "raw_scale": scale}

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log Γ((ν+1)/2)/Γ(ν/2) − ½ log(νπs²) − (ν+1)/2 · log(1 + (y−f)²/(νs²))."""
        df, scale = self.df[..., None], self.scale[..., None]
        return self._constant() - 0.5 * (df + 1) * ((y - f) / scale).square().div(df).log1p()

    def start(self, y: Tensor) -> Tensor:
        """Return the targets: far from them all are outliers, which pull less with distance."""
        return y

    def expectations(self, mean: Tensor, variance: Tensor, y: Tensor) -> Expectations:
        """Integrate over a scale instead of f, exact also where f is wider than the noise.

        With c = νs², log(1 + z²/c) = ∫ (1 − exp(−τz²/c)) exp(−τ)/τ dτ, whose expectation under
        z ~ N(y − mean, variance) is in closed form under the integral; so are its derivatives in
        the mean. Gauss-Hermite rules on f would not see a peak that is narrower than their nodes.
        """
        df, scale = self.df[..., None], self.scale[..., None]
        c, delta = df * scale.square(), y - mean
        # The integrand in log τ rises like τ from the left: a first node this early, and the
        # geometric series of those before it, leave no visible error.
        ratio = ((variance + delta.square()) / c).detach()
        first = _FIRST - ratio.log1p()
        step = (_LAST - first) / (_NUM_NODES - 1)
        index = torch.arange(_NUM_NODES, dtype=mean.dtype, device=mean.device)
        index = index.view(-1, *(1,) * ratio.ndim)
        tau = (first + step * index).exp()
        weight = step * torch.where(index == 0, -1 / (-step).expm1(), 1) * (-tau).exp()
        # E[exp(−τz²/c)] = exp(−exponent), z ~ N(δ, variance); its slopes in δ follow.
        wide = c + 2 * tau * variance
        exponent = 0.5 * (2 * tau * variance / c).log1p() + tau * delta.square() / wide
        log_term = (weight * -(-exponent).expm1()).sum(0)
        pull = weight * (-exponent).exp() * tau / wide
        return Expectations(
            self._constant() - 0.5 * (df + 1) * log_term,
            (df + 1) * delta * pull.sum(0),
            (df + 1) * (pull * (1 - 2 * tau * delta.square() / wide)).sum(0),
        )

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Mix N(y; mean, variance + s²/τ) over τ ~ Gamma(ν/2, ν/2)."""
        distance = (y - mean).square()

        def log_density(total: Tensor) -> Tensor:
            return -0.5 * (distance / total + total.log())

        offset = 0.5 * math.log(2 * math.pi)
        return self._log_mixture(log_density, variance, distance, self.df[..., None] + 1, offset)

    def predictive_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Mix Φ((y − mean)/√(variance + s²/τ)) over τ ~ Gamma(ν/2, ν/2)."""
        tail = self._log_tail(variance, (y - mean).abs()).exp()
        return torch.where(y < mean, tail, 1 - tail)

    @torch.no_grad()
    def quantile(self, mean: Tensor, variance: Tensor, p: float | Tensor) -> Tensor:
        """Return mean ± x, where the tail beyond x is min(p, 1 − p)."""
        mean, variance, levels = torch.broadcast_tensors(mean, variance, probabilities(p, mean))
        unit = (variance + self.scale[..., None].square()).sqrt()
        # A power-law tail's log odds are all but linear in z, x = unit · sinh z.
        target = -log_odds(torch.minimum(levels, 1 - levels).log())
        z = invert(lambda z: -log_odds(self._log_tail(variance, unit * z.sinh())), target)
        return mean + (levels - 0.5).sign() * unit * z.sinh()

    @torch.no_grad()
    def predictive_crps(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return E|Y − y| − ½ E|Y − Y'| of the mixture over τ; infinite for ν ≤ 1.

        With σ² = variance + s²/τ these are E|N(y − mean, σ²)| and E √((σ² + σ'²)/(2π)).
        """
        mean, variance, y = torch.broadcast_tensors(mean, variance, y)
        df, noise = self.df[..., None], self.scale[..., None].square()
        shape = 0.5 * df
        # The mean errors of single scales fall off slower in log τ, but their tails cancel.
        rate = torch.minimum(df - 0.5, shape + 0.5).clamp_min(0.5)
        spread = (2 * _DECAY / shape).sqrt()
        first, last = -(_DECAY / rate + spread), (_DECAY / shape + spread).log1p()
        index = torch.linspace(0.0, 1.0, _NUM_SCALES, dtype=y.dtype, device=y.device)
        u = first + index.view(-1, *(1,) * y.ndim) * (last - first)
        weight = (shape * (u - u.exp())).exp()
        weight = weight / weight.sum(0)
        total = variance + noise * (-u).exp()
        # E|Y − y|, then E √((σ² + σ'²)/(2π)).
        error = (weight * folded_mean(y - mean, total.sqrt())).sum(0)
        pairs = zip(weight, total, strict=True)
        between = sum(w * (weight * (total + other).sqrt()).sum(0) for w, other in pairs)
        return torch.where(df > 1, error - between / math.sqrt(2 * math.pi), torch.inf)

    def _log_tail(self, variance: Tensor, distance: Tensor) -> Tensor:
        """Return log P(Y > mean + distance)."""

        def log_density(total: Tensor) -> Tensor:
            return torch.special.log_ndtr(-distance / total.sqrt())

        return self._log_mixture(log_density, variance, distance.square(), self.df[..., None])

    def _log_mixture(
        self,
        log_density: Callable[[Tensor], Tensor],
        variance: Tensor,
        distance: Tensor,
        rise: Tensor,
        offset: float = 0.0,
    ) -> Tensor:
        """Return log E[exp log_density(variance + s²/τ)] over τ ~ Gamma(ν/2, ν/2), in u = log τ."""
        df, noise = self.df[..., None], self.scale[..., None].square()
        shape = 0.5 * df
        constant = shape * shape.log() - shape.lgamma() - offset

        def log_integrand(u: Tensor) -> Tensor:
            return constant + shape * (u - u.exp()) + log_density(variance + noise * (-u).exp())

        # Between the peaks for an outlier of the noise and for one of f; the reach covers both,
        # and the exponential tail on the left.
        centre = (df + 1).log() - (df + distance / (noise + variance)).log()
        width = (2 / (df + 1)).sqrt().expand(centre.shape)
        reach = 2 * _DECAY / rise + (variance / noise).log1p() + 9 * width
        return log_integral(log_integrand, centre.detach(), width.detach(), reach.detach())

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> DiagonalGaussian:
        """Return N(mean, variance + s² ν/(ν − 2)); the variance is infinite for ν ≤ 2."""
        df = self.df[..., None]
        noise = self.scale[..., None].square() * df / (df - 2)
        return DiagonalGaussian(mean, variance + torch.where(df > 2, noise, torch.inf))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw f + s √(ν(U^(−2/ν) − 1)) cos(2πV), which is exact (Bailey 1994)."""
        df = self.df[..., None]
        # 1 − u lies in (0, 1].
        u, v = torch.rand((2, *f.shape), dtype=f.dtype, device=f.device, generator=generator)
        radius = (df * ((-2 / df) * (-u).log1p()).expm1()).sqrt()
        return f + self.scale[..., None] * radius * (2 * math.pi * v).cos()

    def _constant(self) -> Tensor:
        df, scale = self.df[..., None], self.scale[..., None]
        gammas = (0.5 * (df + 1)).lgamma() - (0.5 * df).lgamma()
        return gammas - 0.5 * (math.pi * df * scale.square()).log()
