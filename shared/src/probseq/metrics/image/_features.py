"""Checks of the feature matrices that distances between image sets share."""

from torch import Tensor

from probseq.metrics._checks import check_finite


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
