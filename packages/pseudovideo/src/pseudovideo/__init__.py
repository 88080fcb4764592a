"""Image generation through pseudo videos: an image is the last frame of its own corruptions."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("pseudovideo")
