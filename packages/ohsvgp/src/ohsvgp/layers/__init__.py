"""Layers of deep sequence models that are Gaussian processes over time; experimental."""

from ohsvgp.layers.base import TimePosterior
from ohsvgp.layers.hippo import HiPPOLayer

__all__ = ["HiPPOLayer", "TimePosterior"]
