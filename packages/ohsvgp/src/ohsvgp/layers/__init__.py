"""Layers of deep sequence models that are Gaussian processes over time; experimental."""

from ohsvgp.layers.base import TimePosterior
from ohsvgp.layers.hippo import HiPPOLayer
from ohsvgp.layers.matern import MaternLayer

__all__ = ["HiPPOLayer", "MaternLayer", "TimePosterior"]
