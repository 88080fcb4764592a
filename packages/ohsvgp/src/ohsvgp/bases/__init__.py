"""How inducing variables follow a stream."""

from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.legendre import LegS

__all__ = ["Advance", "Basis", "LegS", "TimeBasis"]
