"""Kernel-eigen-pair sparse variational GP attention (Chen et al. 2024)."""

from importlib.metadata import version

from kepsvgp.attention import KernelEigenPairAttention, Penalties

__all__ = ["KernelEigenPairAttention", "Penalties", "__version__"]

__version__ = version("kepsvgp")
