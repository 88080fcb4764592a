"""Priors by name."""

from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import add
from typing import Literal

import torch

from ohsvgp.beyond.means import Mean, Seasonal, Trend
from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from probseq.kernels import Kernel, parse_kernel

PRIOR_OPTIONS = ("kernel", "likelihood", "lengthscale", "outputscale", "noise", "dispersion")


def make_prior(
    *,
    kernel: str = "rbf",
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

    The noise is the variance of Gaussian noise and the squared scale of Student's t.
    """
    double = partial(torch.tensor, dtype=torch.float64)  # a float would pass through float32
    made: dict[str, Callable[[], Likelihood]] = {
        "gaussian": lambda: Gaussian(double(noise)),
        "student-t": lambda: StudentT(scale=double(noise).sqrt()),
        "poisson": Poisson,
        "negative-binomial": lambda: NegativeBinomial(double(dispersion)),
        "bernoulli": Bernoulli,
    }
    covariance = parse_kernel(kernel, dim, lengthscale=lengthscale, outputscale=outputscale)
    return covariance, made[likelihood]()


def make_mean(*, trend: bool, season: Iterable[float]) -> Mean | None:
    """Return a line and seasons for targets of about unit size; None for neither.

    The slope may reach ten units of y in a unit of time; seasons have three harmonics each.
    """
    terms: list[Mean] = [Trend(10.0, 10.0)] if trend else []
    terms += [Seasonal(period, 3, deviation=3.0) for period in season]
    return reduce(add, terms) if terms else None
