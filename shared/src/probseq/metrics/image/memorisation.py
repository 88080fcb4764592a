"""Memorisation: distances from samples to the nearest training images (Meehan et al. 2020)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.metrics._checks import check_vector
from probseq.metrics.image._features import check_features, check_same_dimension, distance_blocks


class Nearest(NamedTuple):
    """The nearest of some references to each feature.

    Attributes:
        distance: Euclidean, float64.
        number: which reference it is, the first of equally near ones.
    """

    distance: Float[Tensor, " n"]
    number: Int64[Tensor, " n"]


class Memorisation(NamedTuple):
    """Distances from samples to training images, beside those from unseen images.

    Attributes:
        nearer: probability that a sample lies nearer to its nearest training image than a test
            image to its own, ties counting half: 0.5 for a model that has learned the
            distribution, 1 for copies, below 0.5 where samples are poor.
        c_t: the Mann-Whitney statistic of the distances in its standard deviations, C_T of Meehan,
            Chaudhuri and Dasgupta (2020, one cell): standard normal where both kinds of distances
            have one distribution, far below 0 for copies; 0 where all distances are equal.
    """

    nearer: float
    c_t: float


def nearest(features: Float[Tensor, "n d"], references: Float[Tensor, "m d"]) -> Nearest:
    """Return the nearest reference of each feature, in blocks that fit into memory.

    Args:
        features: of what is looked up; pixels, too.
        references: among which.

    Raises:
        ValueError: a bad shape, dimensions that differ, NaN or infinity.
    """
    x, y = check_features("features", features), check_features("references", references)
    check_same_dimension(features=x.shape[1], references=y.shape[1])
    # Distances don't feel a shift, and keep more digits near the origin.
    origin = y.mean(dim=0)
    number = torch.cat([d.argmin(dim=1) for _, d in distance_blocks(x - origin, y - origin)])
    return Nearest((x - y[number]).square().sum(dim=1).sqrt(), number)


def memorisation(test: Float[Tensor, " m"], fake: Float[Tensor, " n"]) -> Memorisation:
    """Compare distances to the nearest training image, of test images and of samples.

    What is near depends on the features: of pixels, shifts are far; of a classifier, images of one
    class are near. Take test images of the training images' distribution.

    Args:
        test: `nearest(test, train).distance`.
        fake: `nearest(samples, train).distance`.

    Raises:
        ValueError: no distances, other shapes, NaN, or infinity.

    Example:
        >>> memorisation(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.5])).nearer
        0.75
    """
    test, fake = (check_vector(*side).double() for side in (("test", test), ("fake", fake)))
    m, n = len(test), len(fake)
    values, place, counts = torch.cat([test, fake]).unique(return_inverse=True, return_counts=True)
    # Ranks 1..m + n, ties sharing the mean of their places; U counts pairs with a farther sample.
    ranks = (counts.cumsum(0) - (counts - 1) / 2.0)[place]
    farther = float(ranks[m:].sum()) - n * (n + 1) / 2
    ties = float((counts.double().pow(3) - counts).sum()) / ((m + n) * max(m + n - 1, 1))
    deviation = math.sqrt(max(m * n / 12 * (m + n + 1 - ties), 0.0))
    centred = farther - m * n / 2
    # Equal distances alone leave round-off of the ranks' variance.
    c_t = centred / deviation if len(values) > 1 else 0.0
    return Memorisation(1.0 - farther / (m * n), c_t)
