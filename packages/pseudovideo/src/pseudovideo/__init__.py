"""Not built yet: this release holds a version and nothing else. See the README."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("pseudovideo")
