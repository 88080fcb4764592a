r"""Kernel distance between two sets of features (Bińkowski et al. 2018), KID on Inception's.

MMD² with k(x, y) = (x·y/d + 1)³, without bias, in float64: from m features on each side
  Σ_{i≠j} k(x_i, x_j)/(m(m−1)) + Σ_{i≠j} k(y_i, y_j)/(m(m−1)) − 2 Σ_{i,j} k(x_i, y_j)/m².
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.metrics.image._features import check_features, check_same_dimension


class KernelDistance(NamedTuple):
    """A kernel distance and what it takes to read it.

    Attributes:
        mean: over the subsets; around 0, below it too, for sets of one distribution.
        std: standard deviation over the subsets (the sum is divided by their number, not one less).
            It is that of one subset's distance; the mean is known better.
        subsets: number of subsets.
        subset_size: features of each side in a subset.
    """

    mean: float
    std: float
    subsets: int
    subset_size: int


def kernel_distance(
    real: Float[Tensor, "n d"],
    fake: Float[Tensor, "m d"],
    *,
    subsets: int = 100,
    subset_size: int = 1000,
    generator: torch.Generator | None = None,
) -> KernelDistance:
    """Return the mean unbiased MMD² of random subsets of two sets of features.

    Unlike the Fréchet distance it has no bias, however few the features are. It may be called KID
    only where the Fréchet distance may be called FID, see `distance_name`.

    Args:
        real: features of the reference.
        fake: features of what is judged; the order makes no difference but to the draw.
        subsets: number of pairs of subsets, each drawn without replacement.
        subset_size: features of each side in a subset; papers take 1,000.
        generator: draws the subsets; None is torch's own.

    Raises:
        ValueError: a bad shape, dimensions that differ, NaN or infinity, no subset, or subsets of
            less than two features or more than a side has.

    Example:
        >>> points = torch.ones(5, 2)  # k = (2/2 + 1)³ = 8 between them, 1 to the origin
        >>> kernel_distance(points, torch.zeros(5, 2), subsets=3, subset_size=4).mean
        7.0
    """
    real, fake = check_features("real", real), check_features("fake", fake)
    check_same_dimension(real=real.shape[1], fake=fake.shape[1])
    most = min(len(real), len(fake))
    check_counts(subsets=subsets)
    if not 2 <= subset_size <= most:
        raise ValueError(
            f"subset_size must be 2..{most}, the number of features of the smaller side, got "
            f"{subset_size}"
        )
    check_counts(subset_size=subset_size)
    distances = torch.stack(
        [
            _squared_mmd(_draw(real, subset_size, generator), _draw(fake, subset_size, generator))
            for _ in range(subsets)
        ]
    )
    return KernelDistance(
        float(distances.mean()), float(distances.std(correction=0)), subsets, subset_size
    )


def _draw(features: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    device = torch.device("cpu") if generator is None else generator.device
    chosen = torch.randperm(len(features), generator=generator, device=device)[:size]
    return features[chosen.to(features.device)]


def _squared_mmd(x: Tensor, y: Tensor) -> Tensor:
    m = len(x)
    k_xx, k_yy, k_xy = polynomial_kernel(x, x), polynomial_kernel(y, y), polynomial_kernel(x, y)
    within = k_xx.sum() - k_xx.trace() + k_yy.sum() - k_yy.trace()
    return within / (m * (m - 1)) - 2.0 * k_xy.mean()


def polynomial_kernel(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Return (x·y/d + 1)³."""
    return (x @ y.T / x.shape[1] + 1.0).pow(3)
