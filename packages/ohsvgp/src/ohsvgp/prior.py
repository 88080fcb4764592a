"""Priors by name, and that of greatest evidence."""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from ohsvgp.bases import PivotedCholesky
from ohsvgp.likelihoods import (
    Bernoulli,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from ohsvgp.online import OnlineGP
from probseq.errors import CholeskyError
from probseq.kernels import RBF, Kernel, Matern12, Matern32, Matern52

__all__ = ["PRIOR_OPTIONS", "fit_prior", "make_prior"]

PRIOR_OPTIONS = ("kernel", "likelihood", "lengthscale", "outputscale", "noise", "dispersion")
_KERNELS = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}


def make_prior(
    *,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "rbf",
    likelihood: Literal[
        "gaussian", "student-t", "poisson", "negative-binomial", "bernoulli"
    ] = "gaussian",
    lengthscale: float = 1.0,
    outputscale: float = 1.0,
    noise: float = 0.1,
    dispersion: float = 1.0,
    dim: int = 1,
) -> tuple[Kernel, Likelihood]:
    """Return covariance and observation model, whose numbers keep their digits.

    Args:
        kernel: name of the covariance.
        likelihood: name of the observation model.
        lengthscale: of each dimension.
        outputscale: prior variance.
        noise: variance of Gaussian noise; squared scale of Student's t.
        dispersion: of negative binomial counts.
        dim: of the inputs.
    """

    def double(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)  # a float would pass through float32

    made: dict[str, Callable[[], Likelihood]] = {
        "gaussian": lambda: Gaussian(double(noise)),
        "student-t": lambda: StudentT(scale=double(noise).sqrt()),
        "poisson": Poisson,
        "negative-binomial": lambda: NegativeBinomial(double(dispersion)),
        "bernoulli": Bernoulli,
    }
    scales = double(lengthscale).expand(dim)
    covariance = _KERNELS[kernel](dim, lengthscale=scales, outputscale=double(outputscale))
    return covariance, made[likelihood]()


def fit_prior(
    priors: Iterable[tuple[Kernel, Likelihood]], x: Tensor, y: Tensor, *, steps: int, seed: int = 0
) -> tuple[Kernel, Likelihood]:
    """Return the prior whose evidence on some data is greatest, each fitted to them in place.

    Args:
        priors: kernels and likelihoods to start from.
        x: inputs, few enough for the exact evidence.
        y: targets.
        steps: iterations of each fit at most.
        seed: of models whose evidence is no exact one.

    Raises:
        CholeskyError: the evidence can be computed for none of them.
    """
    best, most, failure = None, -math.inf, CholeskyError("there is no prior to start from")
    for prior in priors:
        # With as many inducing points as points: the exact evidence.
        model = OnlineGP(*prior, PivotedCholesky(len(x)), seed=seed)
        try:
            evidence = model.fit_hyperparameters(x, y, steps=steps).after
        except CholeskyError as error:
            failure = error
            continue
        if best is None or evidence > most:
            best, most = prior, evidence
    if best is None:
        raise failure
    return best
