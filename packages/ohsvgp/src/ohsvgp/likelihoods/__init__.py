"""Observation models."""

from ohsvgp.likelihoods.base import Expectations, Likelihood
from ohsvgp.likelihoods.bernoulli import Bernoulli
from ohsvgp.likelihoods.gaussian import Gaussian

__all__ = ["Bernoulli", "Expectations", "Gaussian", "Likelihood"]
