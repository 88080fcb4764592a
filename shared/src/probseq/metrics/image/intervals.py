r"""Confidence intervals of distances and scores by the bootstrap (Efron and Tibshirani 1993).

Samples are drawn anew from the samples, with replacement: drawn b has weights w_i, how often each
was taken, and the value θ*_b is that of the weighted moments, so that nothing is extracted again.
With θ the value of the samples as they are, b = mean θ*_b − θ estimates the bias of θ, and s, the
standard deviation of θ*_b, its error. The interval of 95 %, θ − b ± z s, is one of the value that
infinitely many samples would have (the FID∞ and IS∞ of Chong and Forsyth 2020), not of θ, whose
bias depends on the number of samples. The reference is taken as it is: its own scatter isn't
counted.
"""

from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_counts
from probseq.metrics._checks import check_probs
from probseq.metrics.image._features import check_features, check_same_dimension
from probseq.metrics.image.frechet import FeatureMoments, covariance_factor

# Half the width of a 95 % interval in standard errors.
WIDTH = NormalDist().inv_cdf(0.975)
# Rows of a kernel matrix at a time.
_ROWS = 1024


class Interval(NamedTuple):
    """A number, and where it would lie with infinitely many samples.

    Attributes:
        estimate: of the samples as they are.
        value: the estimate less its bias.
        low: lower end of the interval around the value.
        high: upper end.
        draws: number of bootstrap draws.
    """

    estimate: float
    value: float
    low: float
    high: float
    draws: int


def frechet_interval(
    real: Float[Tensor, "n d"] | FeatureMoments,
    fake: Float[Tensor, "m d"],
    *,
    draws: int = 200,
    generator: torch.Generator | None = None,
) -> Interval:
    """Return the Fréchet distance with its interval; the estimate is `frechet_distance`.

    With A Aᵀ = S₁ of the reference and y = Aᵀ x of each sample, a draw costs the weighted
    covariance of y and its eigenvalues. Where there are few samples for the dimension, m below
    about 10 d, the interval is wider than it need be.

    Args:
        real: features, or their moments, of the reference.
        fake: features of samples, more than dimensions.
        draws: number of bootstrap draws.
        generator: draws; None is torch's own.

    Raises:
        ValueError: a bad shape, dimensions that differ, no more samples than dimensions, a
            reference of one feature, no two draws, or NaN or infinity.
    """
    fake = check_features("fake", fake)
    moments = real if isinstance(real, FeatureMoments) else FeatureMoments.of(real)
    width, count = fake.shape[1], len(fake)
    check_same_dimension(real=moments.mean.numel(), fake=width)
    if moments.count < 2:
        raise ValueError(
            f"real must hold at least 2 features for a covariance, got {moments.count}"
        )
    if count <= width:
        raise ValueError(
            f"fake must hold more features than their dimension {width} to be drawn anew, got "
            f"{count}"
        )
    covariance = moments.covariance
    x = fake - moments.mean
    y = x @ covariance_factor(covariance)  # Aᵀ S₂ A is its covariance
    squares = x.square().sum(dim=1)

    def distance(weights: Tensor) -> Tensor:
        mean, shift = weights @ y / count, weights @ x / count
        spread = (weights @ squares - count * shift.square().sum()) / (count - 1)
        product = (y.T * weights) @ y - count * torch.outer(mean, mean)
        roots = torch.linalg.eigvalsh(product / (count - 1)).clamp_min(0.0).sqrt().sum()
        return (shift.square().sum() + spread + covariance.trace() - 2.0 * roots).clamp_min(0.0)

    weights = draw_weights(count, draws, generator).to(y)
    distances = torch.stack([distance(drawn) for drawn in weights])
    return _interval(distance(torch.ones_like(squares)), distances, least=0.0)


def kernel_interval(
    real: Float[Tensor, "n d"],
    fake: Float[Tensor, "m d"],
    *,
    draws: int = 200,
    generator: torch.Generator | None = None,
) -> Interval:
    r"""Return the kernel distance of all features (Bińkowski et al. 2018) with its interval.

    The estimate is the unbiased MMD² with k(x, y) = (x·y/d + 1)³ of all features at once: papers
    take the mean over subsets of 1,000, which has its expectation and more scatter. It may be
    called KID only where the Fréchet distance may be called FID, see `distance_name`. Of weights w,
    whose sum is m, it is
      Σ_{i≠j} k(x_i, x_j)/(n(n−1)) + Σ_{i≠j} w_i w_j k(y_i, y_j)/(m² − Σ_i w_i²)
      − 2 Σ_{i,j} w_j k(x_i, y_j)/(nm),
    in which a sample that is drawn twice does not meet itself.

    Args:
        real: features of the reference.
        fake: features of samples.
        draws: number of bootstrap draws.
        generator: draws; None is torch's own.

    Raises:
        ValueError: a bad shape, dimensions that differ, fewer than two features on either side, no
            two draws, or NaN or infinity.
    """
    real, fake = check_features("real", real), check_features("fake", fake)
    check_same_dimension(real=real.shape[1], fake=fake.shape[1])
    for name, side in (("real", real), ("fake", fake)):
        if len(side) < 2:
            raise ValueError(f"{name} must hold at least 2 features, got {len(side)}")
    n, m = len(real), len(fake)
    drawn = draw_weights(m, draws, generator).to(fake)
    weights = torch.cat([torch.ones_like(drawn[:1]), drawn]).T
    within = sum(
        (_polynomial_kernel(rows, real).sum() for rows in real.split(_ROWS)), real.new_zeros(())
    )
    diagonal = (real.square().sum(dim=1) / real.shape[1] + 1.0).pow(3)
    within = (within - diagonal.sum()) / (n * (n - 1))
    among, across = torch.zeros_like(weights[0]), torch.zeros_like(weights[0])
    for rows, row_weights in zip(fake.split(_ROWS), weights.split(_ROWS), strict=True):
        among += (row_weights * (_polynomial_kernel(rows, fake) @ weights)).sum(dim=0)
        across += (row_weights * _polynomial_kernel(rows, real).sum(dim=1, keepdim=True)).sum(dim=0)
    squares = weights.square()
    among -= ((fake.square().sum(dim=1) / fake.shape[1] + 1.0).pow(3)[:, None] * squares).sum(dim=0)
    # Where one sample is all that was drawn, there are no pairs.
    pairs = (m**2 - squares.sum(dim=0)).clamp_min(1.0)
    distances = within + among / pairs - 2.0 * across / (n * m)
    return _interval(distances[0], distances[1:])


def inception_interval(
    probabilities: Float[Tensor, "n k"],
    *,
    draws: int = 200,
    generator: torch.Generator | None = None,
) -> Interval:
    """Return the inception score of all samples as one split, with its interval.

    Args:
        probabilities: p(y|x) of each sample; rows sum to 1.
        draws: number of bootstrap draws.
        generator: draws; None is torch's own.

    Raises:
        ValueError: a bad shape, NaN, rows that don't sum to 1, no two samples, or no two draws.
    """
    probabilities = check_probs(probabilities.detach(), "probabilities").double()
    count = len(probabilities)
    if count < 2:
        raise ValueError(f"probabilities must be of at least 2 samples, got {count}")
    drawn = draw_weights(count, draws, generator).to(probabilities)
    shares = torch.cat([torch.ones_like(drawn[:1]), drawn]) / count
    # exp(H(p(y)) − mean H(p(y|x)))
    mean = torch.special.entr(shares @ probabilities).sum(dim=1)
    scores = (mean - shares @ torch.special.entr(probabilities).sum(dim=1)).exp()
    return _interval(scores[0], scores[1:], least=1.0)


def draw_weights(
    count: int, draws: int, generator: torch.Generator | None
) -> Int64[Tensor, "draws count"]:
    """Return how often each sample is drawn, a row for each draw; on the CPU."""
    check_counts(draws=draws)
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    device = torch.device("cpu") if generator is None else generator.device
    taken = torch.randint(count, (draws, count), generator=generator, device=device).cpu()
    return torch.stack([torch.bincount(row, minlength=count) for row in taken])


def _polynomial_kernel(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Return (x·y/d + 1)³."""
    return (x @ y.T / x.shape[1] + 1.0).pow(3)


def _interval(estimate: Tensor, drawn: Tensor, *, least: float | None = None) -> Interval:
    """Return the interval around the estimate less its bias; no end is below the least."""
    around = WIDTH * float(drawn.std())
    value = float(2.0 * estimate - drawn.mean())
    low, high = value - around, value + around
    if least is not None:
        value, low, high = max(value, least), max(low, least), max(high, least)
    return Interval(float(estimate), value, low, high, len(drawn))
