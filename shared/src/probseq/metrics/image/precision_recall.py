"""Improved precision and recall of samples (Kynkäänniemi et al. 2019), density and coverage.

The manifold of a set of features is a union of balls: around each feature, as far as its k-th
nearest neighbour in the set. Precision is the part of the samples that lies in the manifold of the
real features, recall the part of the real features that lies in the manifold of the samples.
Density and coverage (Naeem et al. 2020) use the balls of the real features alone, so that samples
far from all others do no harm: how many balls a sample lies in, over k, and the part of the balls
with a sample.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.metrics.image._features import check_features, check_same_dimension, distance_blocks
from probseq.metrics.image.intervals import WIDTH, Interval, draw_weights

# Round-off of a squared distance |x|² − 2x·y + |y|², in units of |x|² + |y|².
_ROUND_OFF = 1e-12
# Neighbours beyond the k-th that are looked at where some are missing.
_FURTHER = 60


class PrecisionRecall(NamedTuple):
    """Precision and recall of samples, and what it takes to read them.

    Attributes:
        precision: part of the samples that could be real, 0..1.
        recall: part of the real features that could be drawn, 0..1.
        density: mean number of real features' balls that a sample lies in, over k; 1 on average for
            samples that are real, more where they crowd among many real features.
        coverage: part of the real features whose ball holds a sample, 0..1.
        neighbours: k.
    """

    precision: float
    recall: float
    density: float
    coverage: float
    neighbours: int


def precision_recall(
    real: Float[Tensor, "n d"], fake: Float[Tensor, "m d"], *, neighbours: int = 3
) -> PrecisionRecall:
    """Return the shares of samples among the real features, and of these among the samples.

    Both grow with the number of neighbours and depend on the numbers of features: compare values of
    equal counts alone. Papers take VGG-16's features and 50,000 on each side. One feature far from
    all others makes a large ball. Time grows as n² + nm + m², memory with n + m.

    Args:
        real: features of the reference.
        fake: features of samples.
        neighbours: k; the feature itself is not among its neighbours, what lies on the rim of a
            ball is in it.

    Raises:
        ValueError: a bad shape, dimensions that differ, NaN or infinity, or no more features than
            neighbours on either side.

    Example:
        >>> line = torch.arange(5.0)[:, None]  # balls of radius 1
        >>> precision_recall(line, torch.tensor([[2.5], [8.0]]), neighbours=1)
        PrecisionRecall(precision=0.5, recall=1.0, density=1.0, coverage=0.4, neighbours=1)
    """
    real, fake = _checked(real, fake, neighbours)
    weights = torch.ones(1, len(fake), dtype=torch.float64, device=fake.device)
    precision, recall, density, coverage = _measured(real, fake, neighbours, weights)[0].tolist()
    return PrecisionRecall(precision, recall, density, coverage, neighbours)


def precision_recall_intervals(
    real: Float[Tensor, "n d"],
    fake: Float[Tensor, "m d"],
    *,
    neighbours: int = 3,
    draws: int = 200,
    generator: torch.Generator | None = None,
) -> dict[str, Interval]:
    """Return precision, recall, density and coverage with intervals, for these counts.

    Samples are drawn anew as in `probseq.metrics.image.intervals`, the real features stay. A sample
    drawn twice is its own neighbour and another is missing, so that recall and coverage of drawn
    samples are too low: their spread s counts alone, around the estimate. Of a share p the interval
    is Wilson's for p(1 − p)/s² samples, or for all where p is 0 or 1.

    Args:
        real: features of the reference.
        fake: features of samples.
        neighbours: k.
        draws: number of bootstrap draws.
        generator: draws; None is torch's own.

    Returns:
        An interval for each of the four, by name; the value is the estimate.

    Raises:
        ValueError: as `precision_recall`, or no two draws.
    """
    real, fake = _checked(real, fake, neighbours)
    drawn = draw_weights(len(fake), draws, generator).to(fake)
    weights = torch.cat([torch.ones_like(drawn[:1]), drawn])
    values = _measured(real, fake, neighbours, weights)
    z, spread = WIDTH, values[1:].std(dim=0)
    intervals: dict[str, Interval] = {}
    for place, name in enumerate(PrecisionRecall._fields[:4]):
        value, error = float(values[0, place]), float(spread[place])
        low, high = max(value - z * error, 0.0), value + z * error
        if name != "density":
            count = value * (1.0 - value) / error**2 if 0.0 < value < 1.0 and error else len(fake)
            # (p + z²/2N ± z √(p(1 − p)/N + z²/4N²)) / (1 + z²/N)
            around = z * (value * (1.0 - value) / count + (z / (2.0 * count)) ** 2) ** 0.5
            low, high = (
                min(
                    max((value + z**2 / (2.0 * count) + sign * around) / (1.0 + z**2 / count), 0), 1
                )
                for sign in (-1.0, 1.0)
            )
        intervals[name] = Interval(value, value, low, high, draws)
    return intervals


def _checked(real: Tensor, fake: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    real, fake = check_features("real", real), check_features("fake", fake)
    check_same_dimension(real=real.shape[1], fake=fake.shape[1])
    most = min(len(real), len(fake)) - 1
    if not 1 <= neighbours <= most:
        raise ValueError(
            f"neighbours must be 1..{most}, below the number of features of the smaller side, got "
            f"{neighbours}"
        )
    check_counts(neighbours=neighbours)
    return real, fake


def _measured(
    real: Tensor, fake: Tensor, neighbours: int, weights: Float[Tensor, "b m"]
) -> Float[Tensor, "b 4"]:
    """Return precision, recall, density and coverage of samples with multiplicities."""
    # Distances don't feel a shift, and keep more digits near the origin. Not the mean, which a
    # single feature far from all others moves away from them.
    origin = real.median(dim=0).values
    real, fake = real - origin, fake - origin
    real_slack, fake_slack = (_ROUND_OFF * x.square().sum(dim=1) for x in (real, fake))
    ones = torch.ones(1, len(real), dtype=real.dtype, device=real.device)
    real_radii = _squared_radii(real, neighbours, ones)[0]
    # No ball around a sample that is not there.
    fake_radii = _squared_radii(fake, neighbours, weights)
    fake_radii[weights == 0] = -torch.inf
    realistic, inside = torch.zeros_like(weights[:, 0]), torch.zeros_like(weights[:, 0])
    hit = torch.zeros(len(weights), len(real), dtype=torch.bool, device=real.device)
    covered = torch.zeros_like(hit)
    for rows, distances in distance_blocks(fake, real):
        distances = distances - fake_slack[rows, None] - real_slack
        within, counts = distances <= real_radii, weights[:, rows]
        realistic += counts @ within.any(dim=1).to(counts)
        inside += counts @ within.sum(dim=1).to(counts)
        hit |= counts @ within.to(counts) > 0
        for draw, radii in enumerate(fake_radii[:, rows]):
            covered[draw] |= (distances <= radii[:, None]).any(dim=0)
    recall, coverage = (each.double().mean(dim=1) for each in (covered, hit))
    precision, density = realistic / len(fake), inside / (neighbours * len(fake))
    return torch.stack([precision, recall, density, coverage], dim=1)


def _squared_radii(
    x: Tensor, neighbours: int, weights: Float[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """Return squared distances to the k-th nearest neighbour, a feature's copies included."""
    radii = torch.empty_like(weights)
    single = len(weights) == 1
    # Of features drawn anew the k-th is among so many, but once in 10¹² times.
    most = min(len(x), neighbours + 1 if single else neighbours + _FURTHER)
    for rows, distances in distance_blocks(x, x):
        distances.scatter_(1, rows[:, None], -1.0)  # itself is first
        near, places = distances.topk(most, dim=1, largest=False)
        # Neighbours up to each place; of itself, the copies.
        count = weights[:, places].cumsum(dim=2) - 1.0
        place = (count < neighbours).sum(dim=2).clamp_max(most - 1)
        radii[:, rows] = near.expand(len(weights), -1, -1).gather(2, place[..., None])[..., 0]
    return radii.clamp_min(0.0)
