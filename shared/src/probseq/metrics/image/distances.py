r"""Fréchet and kernel distance between two sets of features.

The Fréchet distance (Heusel et al. 2017) is that of Gaussians fitted to both,
d²((m₁, S₁), (m₂, S₂)) = ‖m₁ − m₂‖² + tr S₁ + tr S₂ − 2 tr (S₁S₂)^{1/2}, in float64. The last trace
is taken without a matrix square root: with any A such that S₁ = A Aᵀ it is the sum of the roots of
the eigenvalues of the symmetric matrix Aᵀ S₂ A. A is the Cholesky factor; for fewer features than
dimensions it is the centred features themselves, and the problem is as small as they are few.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import as_finite, as_vector, check_counts, check_sizes

# Rows of a kernel matrix at a time.
_ROWS = 1024


@dataclass(frozen=True)
class FeatureMoments:
    """Mean and scatter of features."""

    count: int  # number of features
    mean: Float[Tensor, " d"]  # their mean, float64
    scatter: Float[Tensor, "d d"]  # Σ (x − mean)(x − mean)ᵀ, float64

    def __post_init__(self) -> None:
        check_counts(count=self.count)
        as_vector("mean", self.mean)
        check_sizes("scatter", self.scatter, len(self.mean), len(self.mean))
        as_finite("scatter", self.scatter)

    @classmethod
    def of(cls, features: Float[Tensor, "n d"]) -> "FeatureMoments":
        """Return the moments of one batch."""
        features = check_features("features", features)
        mean = features.mean(dim=0)
        centred = features - mean
        return cls(len(features), mean, centred.T @ centred)

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """Unbiased covariance, scatter / (count − 1)."""
        return self.scatter / (self.count - 1)


def frechet_distance(
    real: Float[Tensor, "n d"] | FeatureMoments, fake: Float[Tensor, "m d"] | FeatureMoments
) -> Float[Tensor, ""]:
    """Return the Fréchet distance (its square, as usual) between two sets of features.

    It is biased upwards, the more the fewer features there are: compare distances of equal counts
    alone, and look at the distance between two parts of the real data for its scale.

    The order makes no difference.
    """
    sides: list[Tensor | FeatureMoments] = []
    for name, side in (("real", real), ("fake", fake)):
        checked = side if isinstance(side, FeatureMoments) else check_features(name, side)
        count = checked.count if isinstance(checked, FeatureMoments) else len(checked)
        if count < 2:
            raise ValueError(f"{name} must hold at least 2 features for a covariance, got {count}")
        sides.append(checked)
    # Moments, or more features than dimensions, are better met with d × d matrices.
    first, second = (
        FeatureMoments.of(side) if isinstance(side, Tensor) and len(side) > side.shape[1] else side
        for side in sides
    )
    check_same_dimension(real=_dimension(first), fake=_dimension(second))
    (mean, spread), (other_mean, other_spread) = _mean_and_trace(first), _mean_and_trace(second)
    shift = (mean - other_mean).square().sum()  # ‖m₁ − m₂‖²
    # … + tr S₁ + tr S₂ − 2 tr (S₁S₂)^{1/2}, which rounding may leave below 0
    return (shift + spread + other_spread - 2.0 * _root_trace(first, second)).clamp_min(0.0)


def kernel_distance(real: Float[Tensor, "n d"], fake: Float[Tensor, "m d"]) -> Float[Tensor, ""]:
    r"""Return the unbiased MMD² with k(x, y) = (x·y/d + 1)³ (Bińkowski et al. 2018).

    Of all features at once: papers take the mean over subsets of 1,000, which has its expectation
    and more scatter. It may be called KID only where the Fréchet distance may be called FID, see
    `distance_name`.

    In float64; of equal distributions it lies on either side of zero.
    """
    sides: list[Tensor] = []
    for name, side in (("real", real), ("fake", fake)):
        sides.append(check_features(name, side))
        if len(side) < 2:
            raise ValueError(f"{name} must hold at least 2 features, got {len(side)}")
    x, y = sides
    check_same_dimension(real=x.shape[1], fake=y.shape[1])
    # Σ_{i≠j} k(x_i, x_j)/(n(n−1)) + Σ_{i≠j} k(y_i, y_j)/(m(m−1)) − 2 Σ_{i,j} k(x_i, y_j)/(nm).
    within = torch.zeros((), dtype=x.dtype, device=x.device)
    for side in sides:
        # Less k(x_i, x_i) = (|x_i|²/d + 1)³.
        same = (side.square().sum(dim=1) / side.shape[1] + 1.0).pow(3).sum()
        within += (_kernel_sum(side, side) - same) / (len(side) * (len(side) - 1))
    return within - 2.0 * _kernel_sum(x, y) / (len(x) * len(y))


def check_features(name: str, features: Tensor) -> Tensor:
    """Return features (n, d) in float64, without a gradient."""
    if features.ndim != 2 or features.numel() == 0:
        raise ValueError(
            f"{name} must have shape (n, d) with n, d >= 1, got {tuple(features.shape)}: "
            "flatten each image's features"
        )
    return as_finite(name, features.detach()).double()


def check_same_dimension(**widths: int) -> None:
    """Raise if two sets of features are of different widths, named by the arguments."""
    first, second = widths
    if widths[first] != widths[second]:
        raise ValueError(
            f"{first} and {second} must have features of the same dimension, got {widths[first]} "
            f"and {widths[second]}: take both from the same extractor"
        )


def _kernel_sum(x: Tensor, y: Tensor) -> Tensor:
    """Return Σ_{i,j} (x_i·y_j/d + 1)³."""
    return torch.stack(
        [(rows @ y.T / x.shape[1] + 1.0).pow(3).sum() for rows in x.split(_ROWS)]
    ).sum()


def _mean_and_trace(side: Tensor | FeatureMoments) -> tuple[Tensor, Tensor]:
    if isinstance(side, FeatureMoments):
        return side.mean, side.scatter.trace() / (side.count - 1)
    return side.mean(dim=0), side.var(dim=0).sum()


def _root_trace(first: Tensor | FeatureMoments, second: Tensor | FeatureMoments) -> Tensor:
    """Return the trace of (S₁S₂)^{1/2}; features for moments have no more rows than columns."""
    if isinstance(first, Tensor):
        if isinstance(second, Tensor):
            # tr (AAᵀBBᵀ)^{1/2} is the nuclear norm of AᵀB, which no square has robbed of digits.
            return torch.linalg.svdvals(_centred(first).T @ _centred(second)).sum()
        return _root_sum(_centred(first), second.covariance)
    if isinstance(second, Tensor):
        return _root_sum(_centred(second), first.covariance)
    return _root_sum(_covariance_factor(first.covariance), second.covariance)


def _root_sum(factor: Tensor, covariance: Tensor) -> Tensor:
    """Return Σ √λ over the eigenvalues of Aᵀ S A."""
    return torch.linalg.eigvalsh(factor.T @ covariance @ factor).clamp_min(0.0).sqrt().sum()


def _centred(features: Tensor) -> Tensor:
    """Return A (d, n) with A Aᵀ the unbiased covariance of n features."""
    centred = features - features.mean(dim=0)
    return centred.T / (len(features) - 1) ** 0.5


def _covariance_factor(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d r"]:
    """Return A with A Aᵀ = S: Cholesky, or from eigenvectors where S is singular.

    No jitter: √ makes 1e-8·tr S of a jitter of 1e-16, a thousandfold.
    """
    factor, info = torch.linalg.cholesky_ex(covariance)
    if int(info) == 0:
        return factor
    values, vectors = torch.linalg.eigh(covariance)
    # Directions without spread are left out: their eigenvalues are round-off, and its root isn't.
    spread = values > values[-1].clamp_min(0.0) * len(values) * torch.finfo(values.dtype).eps
    return vectors[:, spread] * values[spread].sqrt()


def _dimension(side: Tensor | FeatureMoments) -> int:
    return side.mean.numel() if isinstance(side, FeatureMoments) else side.shape[1]
