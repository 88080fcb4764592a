"""Errors, densities and coverage of real-valued predictions."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import as_finite, as_floating, as_vector, check_same_shape

# Thesis Eq. 4.20: c_k = 0.05, 0.15, ..., 0.95.
COVERAGE_LEVELS = tuple((2 * k + 1) / 20 for k in range(10))


def _errors(mean: Tensor, targets: Tensor) -> Tensor:
    check_same_shape(targets=targets, mean=mean)
    return as_finite("mean", mean).double() - as_finite("targets", targets).double()


def rmse(mean: Float[Tensor, "*n"], targets: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Return the root-mean-square error sqrt((1/N) Σ (ŷ − y)²), in y's unit (thesis Eq. 4.19)."""
    return _errors(mean, targets).square().mean().sqrt()


def mae(mean: Float[Tensor, "*n"], targets: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Return the mean absolute error (1/N) Σ |ŷ − y|, in the unit of the targets."""
    return _errors(mean, targets).abs().mean()


def coverage_calibration_error(
    samples: Float[Tensor, "s n"], targets: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    r"""Return the mismatch of confidence and coverage of central intervals (thesis Eq. 4.20).

    ECE = (1/K) Σ_k |(1/N) Σ_i 1(y_i ∈ [q̂_{(1−c_k)/2}(x_i), q̂_{(1+c_k)/2}(x_i)]) − c_k|, K = 10,
    c_k = 0.05, 0.15, ..., 0.95, in 0..1, with q̂_p the empirical p-quantile of the S samples of y,
    noise included, interpolated linearly between order statistics. These quantiles are too narrow,
    by O(1/S): exact predictions score about 0.01 with the paper's S = 100.
    """
    samples, targets = _check_samples(samples, targets)
    if samples.shape[0] < 2:
        raise ValueError(f"samples must hold at least 2 draws, got shape {tuple(samples.shape)}")
    ordered = samples.sort(dim=0).values
    coverages = [
        (_quantile(ordered, 0.5 - 0.5 * level) <= targets)
        & (targets <= _quantile(ordered, 0.5 + 0.5 * level))
        for level in COVERAGE_LEVELS
    ]
    levels = torch.tensor(COVERAGE_LEVELS, dtype=torch.float64, device=targets.device)
    return (torch.stack(coverages).double().mean(dim=1) - levels).abs().mean()


def _quantile(ordered: Float[Tensor, "s n"], p: float) -> Float[Tensor, " n"]:
    # torch.quantile sorts again for every p, and refuses more than 2^24 elements.
    position = p * (ordered.shape[0] - 1)
    low = min(int(position), ordered.shape[0] - 2)
    return torch.lerp(ordered[low], ordered[low + 1], position - low)


class LaplaceMixture(NamedTuple):
    """Predictive distribution (1/M) Σ_m (1/S) Σ_s Laplace(f_ms, b_m) of M models with S samples."""

    # Of each model, function values f, one row a Monte Carlo sample
    samples: Sequence[Float[Tensor, "s n"]]
    scales: Sequence[Float[Tensor, ""]]  # of each model, b of its likelihood

    @property
    def mean(self) -> Float[Tensor, " n"]:
        """Mean over models and samples."""
        return self._means.mean(0)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        """Mean over models of var_s f + 2b², plus the variance of the models' means.

        It is exact, so var_s divides by S; also an OOD score (thesis fig. B.2).
        """
        pairs = zip(self.samples, self.scales, strict=True)
        # var_s f + 2b² of each model, and the variance of the models' means between them
        within = [f.double().var(0, correction=0) + 2.0 * b.double().square() for f, b in pairs]
        return torch.stack(within).mean(0) + self._means.var(0, correction=0)

    def log_prob(self, targets: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the log density of each target, in nats (thesis app. B.3.2).

        The logarithm of the mean density, not the mean of the log densities, a lower bound.
        """
        each: list[Tensor] = []
        for samples, scale in zip(self.samples, self.scales, strict=True):
            f, y = _check_samples(samples, targets)
            b = scale.to(f)
            if not 0.0 < b < math.inf:
                raise ValueError(f"scales must be above 0 and finite, got {float(b):g}")
            # log (1/S) Σ_s Laplace(y; f_s, b)
            density = -(f - y).abs() / b - (2.0 * b).log()
            each.append(torch.logsumexp(density, 0) - math.log(len(f)))
        # log (1/M) Σ_m of these densities
        return torch.logsumexp(torch.stack(each), 0) - math.log(len(each))

    def coverage(self, targets: Float[Tensor, " n"], levels: Sequence[float]) -> list[float]:
        """Return the share of targets inside the central intervals of these probabilities.

        The distribution function F is known, so no quantile is estimated: y lies between the
        quantiles (1 − c)/2 and (1 + c)/2 where 2|F(y) − 1/2| ≤ c.
        """
        each: list[Tensor] = []
        for samples, scale in zip(self.samples, self.scales, strict=True):
            z = (targets - samples) / scale
            # F(y) of a Laplace distribution: ½ e^z below its centre, 1 − ½ e^(−z) above
            tail = 0.5 * torch.exp(-z.abs())
            each.append(torch.where(z < 0.0, tail, 1.0 - tail).mean(0))
        # 2|F(y) − ½|, F the mean of the models' distribution functions
        central = 2.0 * (torch.stack(each).mean(0) - 0.5).abs()
        return [float((central <= level).double().mean()) for level in levels]

    def coverage_error(self, targets: Float[Tensor, " n"]) -> float:
        """Return the mean |coverage − probability| of central intervals (thesis Eq. 4.20)."""
        pairs = zip(self.coverage(targets, COVERAGE_LEVELS), COVERAGE_LEVELS, strict=True)
        return sum(abs(share - level) for share, level in pairs) / len(COVERAGE_LEVELS)

    @property
    def _means(self) -> Float[Tensor, "m n"]:
        return torch.stack([samples.mean(0) for samples in self.samples])


def is_constant(values: Float[Tensor, " n"]) -> bool:
    """Return whether values differ by nothing but round-off, as variances that rank nothing."""
    spread = values.amax() - values.amin()
    return bool(spread <= 1e-9 * values.abs().amax())


def _check_samples(samples: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    targets = as_vector("targets", targets).double()
    samples = as_floating("samples", samples)
    if samples.ndim != 2 or samples.shape[1] != targets.numel():
        raise ValueError(
            f"samples must have shape (S, N)=(S, {targets.numel()}), got {tuple(samples.shape)}: "
            "samples come first"
        )
    return as_finite("samples", samples).double(), targets
