"""The command line `probseq`: train, evaluate and compare probabilistic sequence models."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("probseq-apps")
