"""Covariance functions: as functions on tensors, and as modules that hold their parameters."""

from probseq.kernels.base import Kernel
from probseq.kernels.dot_product import Exponential, cosine_features, exponential
from probseq.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    StationaryKernel,
    matern12,
    matern32,
    matern52,
    rbf,
)

__all__ = [
    "RBF",
    "Exponential",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "StationaryKernel",
    "cosine_features",
    "exponential",
    "matern12",
    "matern32",
    "matern52",
    "rbf",
]
