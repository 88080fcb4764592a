"""Checks of feature matrices and squared distances, for all distances between image sets."""

from collections.abc import Iterator

import torch
from torch import Tensor

from probseq.metrics._checks import check_finite

# Distances in a matrix: 128 MB of float64.
_BLOCK = 2**24


def check_features(name: str, features: Tensor) -> Tensor:
    """Return features (n, d) in float64, without a gradient.

    Raises:
        ValueError: not two-dimensional, empty, NaN or infinite.
    """
    if features.ndim != 2 or features.numel() == 0:
        raise ValueError(
            f"{name} must have shape (n, d) with n, d >= 1, got {tuple(features.shape)}: "
            "flatten each image's features"
        )
    return check_finite(name, features.detach()).double()


def check_same_dimension(**widths: int) -> None:
    """Raise if two sets of features are of different widths, named by the arguments."""
    first, second = widths
    if widths[first] != widths[second]:
        raise ValueError(
            f"{first} and {second} must have features of the same dimension, got {widths[first]} "
            f"and {widths[second]}: take both from the same extractor"
        )


def distance_blocks(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield numbers of rows of x, and their squared distances |x|² − 2x·y + |y|² to all of y."""
    squares = y.square().sum(dim=1)
    for rows in torch.arange(len(x), device=x.device).split(max(1, _BLOCK // len(y))):
        chosen = x[rows]
        products = torch.addmm(squares, chosen, y.T, alpha=-2.0)
        yield rows, (products + chosen.square().sum(dim=1, keepdim=True)).clamp_min(0.0)
