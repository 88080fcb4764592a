"""Covariance functions, as modules that hold their parameters."""

from probseq.kernels.base import ARDKernel, Constant, Kernel, Product, Sum
from probseq.kernels.dot_product import Exponential, Linear
from probseq.kernels.expression import parse_kernel
from probseq.kernels.periodic import Periodic, White
from probseq.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    StationaryKernel,
    Walk,
)

__all__ = [
    "RBF",
    "ARDKernel",
    "Constant",
    "Exponential",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "StationaryKernel",
    "Sum",
    "Walk",
    "White",
    "parse_kernel",
]
