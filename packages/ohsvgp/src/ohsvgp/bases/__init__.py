"""How inducing variables follow a stream."""

from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.fourier import Cosine, FouT
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT

__all__ = [
    "Advance",
    "Basis",
    "Cosine",
    "FouT",
    "LagT",
    "LegS",
    "LegT",
    "TimeBasis",
    "UniformGrid",
]
