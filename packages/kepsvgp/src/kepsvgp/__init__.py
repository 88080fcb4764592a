"""Kernel-eigen-pair sparse variational GP attention.

Not built yet: this release holds a version and nothing else.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("kepsvgp")
