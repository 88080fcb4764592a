"""Observation models."""

from ohsvgp.likelihoods.base import Expectations, Likelihood
from ohsvgp.likelihoods.bernoulli import Bernoulli
from ohsvgp.likelihoods.gaussian import Gaussian
from ohsvgp.likelihoods.negative_binomial import NegativeBinomial
from ohsvgp.likelihoods.poisson import Poisson
from ohsvgp.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Expectations",
    "Gaussian",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
]
