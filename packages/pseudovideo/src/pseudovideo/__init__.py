"""Image generation through pseudo videos.

Not built yet: this release holds a version and nothing else.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("pseudovideo")
