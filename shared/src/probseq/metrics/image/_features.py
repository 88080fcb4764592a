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


def check_same_dimension(**dimensions: int) -> None:
    """Raise if sets of features are of different widths."""
    if len(set(dimensions.values())) > 1:
        raise ValueError(
            f"{' and '.join(dimensions)} must have the same dimension, got "
            f"{' and '.join(map(str, dimensions.values()))}: take both from the same extractor"
        )
