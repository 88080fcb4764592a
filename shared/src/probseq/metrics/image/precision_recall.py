"""Improved precision and recall of samples (Kynkäänniemi et al. 2019), density and coverage.

The manifold of a set of features is a union of balls: around each feature, as far as its k-th
nearest neighbour in the set. Precision is the part of the samples that lies in the manifold of the
real features, recall the part of the real features that lies in the manifold of the samples.
Density and coverage (Naeem et al. 2020) use the balls of the real features alone, so that samples
far from all others do no harm: how many balls a sample lies in, over k, and the part of the balls
with a sample.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.metrics.image._features import check_features, check_same_dimension

# Distances in a matrix: 128 MB of float64.
_BLOCK = 2**24
# Round-off of a squared distance, in units of the largest squared norm.
_ROUND_OFF = 1e-12


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
    """How many samples lie among the real features, and how many of these among the samples.

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
    real, fake = check_features("real", real), check_features("fake", fake)
    check_same_dimension(real=real.shape[1], fake=fake.shape[1])
    most = min(len(real), len(fake)) - 1
    if not 1 <= neighbours <= most:
        raise ValueError(
            f"neighbours must be 1..{most}, below the number of features of the smaller side, got "
            f"{neighbours}"
        )
    check_counts(neighbours=neighbours)
    # Distances don't feel a shift, and keep more digits near the origin.
    origin = real.mean(dim=0)
    real, fake = real - origin, fake - origin
    slack = _ROUND_OFF * torch.stack([x.square().sum(dim=1).amax() for x in (real, fake)]).amax()
    real_radii = _squared_radii(real, neighbours) + slack
    fake_radii = _squared_radii(fake, neighbours) + slack
    covered = torch.zeros_like(real_radii, dtype=torch.bool)
    met, realistic, inside = torch.zeros_like(covered), 0, 0
    for rows, distances in _blocks(fake, real):
        within = distances <= real_radii
        realistic += int(within.any(dim=1).sum())
        inside += int(within.sum())
        met |= within.any(dim=0)
        covered |= (distances <= fake_radii[rows, None]).any(dim=0)
    recall, coverage = (float(each.double().mean()) for each in (covered, met))
    precision, density = realistic / len(fake), inside / (neighbours * len(fake))
    return PrecisionRecall(precision, recall, density, coverage, neighbours)


def _squared_radii(x: Tensor, neighbours: int) -> Tensor:
    """Squared distance of each feature to its k-th nearest neighbour."""
    radii = torch.empty_like(x[:, 0])
    for rows, distances in _blocks(x, x):
        distances.scatter_(1, rows[:, None], torch.inf)  # to itself
        radii[rows] = distances.kthvalue(neighbours, dim=1).values
    return radii


def _blocks(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of some rows of x, and their squared distances |x|² − 2x·y + |y|² to all of y."""
    squares = y.square().sum(dim=1)
    for rows in torch.arange(len(x), device=x.device).split(max(1, _BLOCK // len(y))):
        part = x[rows]
        products = torch.addmm(squares, part, y.T, alpha=-2.0)
        yield rows, (products + part.square().sum(dim=1, keepdim=True)).clamp_min(0.0)
