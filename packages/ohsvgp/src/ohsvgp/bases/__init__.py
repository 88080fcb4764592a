"""Bases: rules by which inducing variables follow a stream."""

from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.fading import Fading
from ohsvgp.bases.fourier import Cosine, FouT
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.learning import AdamSteps
from ohsvgp.bases.legendre import LegS, LegT
from ohsvgp.bases.path import Path
from ohsvgp.bases.points import PivotedCholesky, RandomSubset
from ohsvgp.bases.recurrent import RecurrentFeatures
from ohsvgp.bases.variational_fourier import VariationalFourier

__all__ = [
    "AdamSteps",
    "Advance",
    "Basis",
    "Cosine",
    "Fading",
    "FouT",
    "LagT",
    "LegS",
    "LegT",
    "Path",
    "PivotedCholesky",
    "RandomSubset",
    "RecurrentFeatures",
    "TimeBasis",
    "UniformGrid",
    "VariationalFourier",
]
