"""Observation models."""

from ohsvgp.likelihoods.base import Expectations, Likelihood
from ohsvgp.likelihoods.gaussian import Gaussian

__all__ = ["Expectations", "Gaussian", "Likelihood"]
