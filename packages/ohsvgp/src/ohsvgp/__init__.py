"""Online Gaussian processes that learn from a stream without forgetting (thesis chapter 4).

Example:
    >>> import torch
    >>> from ohsvgp import Gaussian, LegS, OnlineGP
    >>> from probseq.kernels import RBF
    >>> gp = OnlineGP(RBF(1), Gaussian(0.01), LegS(20))
    >>> gp.update([0.0, 1.0, 2.0], [0.0, 0.8, 0.9]).n_new
    3
"""

from importlib.metadata import version

from ohsvgp.bases import (
    AdamSteps,
    Cosine,
    FouT,
    LagT,
    LegS,
    LegT,
    Path,
    PivotedCholesky,
    RandomSubset,
    RecurrentFeatures,
    UniformGrid,
    VariationalFourier,
)
from ohsvgp.exact import exact_posterior
from ohsvgp.hyperparameters import FitInfo
from ohsvgp.likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson, StudentT
from ohsvgp.lost import LostInformationWarning
from ohsvgp.online import OnlineGP
from ohsvgp.state import UpdateInfo
from ohsvgp.vae import OnlineSVGPVAE

__all__ = [
    "AdamSteps",
    "Bernoulli",
    "Cosine",
    "FitInfo",
    "FouT",
    "Gaussian",
    "LagT",
    "LegS",
    "LegT",
    "LostInformationWarning",
    "NegativeBinomial",
    "OnlineGP",
    "OnlineSVGPVAE",
    "Path",
    "PivotedCholesky",
    "Poisson",
    "RandomSubset",
    "RecurrentFeatures",
    "StudentT",
    "UniformGrid",
    "UpdateInfo",
    "VariationalFourier",
    "__version__",
    "exact_posterior",
]

__version__ = version("ohsvgp")
