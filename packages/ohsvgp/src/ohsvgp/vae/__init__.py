"""Variational autoencoder with online Gaussian processes as latents (thesis 4.6.3, C.3)."""

from ohsvgp.vae.consolidation import Consolidation, diagonal_fisher
from ohsvgp.vae.inducing import SharedSet
from ohsvgp.vae.model import OnlineSVGPVAE
from ohsvgp.vae.networks import MLPDecoder, MLPEncoder
from ohsvgp.vae.task import TaskInfo

__all__ = [
    "Consolidation",
    "MLPDecoder",
    "MLPEncoder",
    "OnlineSVGPVAE",
    "SharedSet",
    "TaskInfo",
    "diagonal_fisher",
]
