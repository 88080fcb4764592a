"""Priors by name, and that of greatest evidence."""

import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import add
from typing import Any, Literal

import torch
from torch import Tensor

from ohsvgp.bases import PivotedCholesky
from ohsvgp.bases.base import PriorMean
from ohsvgp.beyond.means import Mean, Seasonal, Trend
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
from probseq.kernels import RBF, Kernel, Periodic, parse_kernel

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
    season: Iterable[float] = (),
) -> tuple[Kernel, Likelihood]:
    """Return covariance and observation model, whose numbers keep their digits.

    The noise is the variance of Gaussian noise and the squared scale of Student's t. Seasons are
    periods of further terms of the covariance, each a pattern that changes slowly from one period
    to the next; the periods are not learned.
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
    covariance = parse_kernel(kernel, dim, lengthscale=lengthscale, outputscale=outputscale)
    for period in season:
        pattern = Periodic(dim, period=double(period), outputscale=outputscale)
        change = RBF(dim, lengthscale=double(10 * period))
        for fixed in (pattern.raw_period, change.raw_outputscale):
            fixed.requires_grad_(False)
        covariance = covariance + (pattern * change).double()
    return covariance, made[likelihood]()


def make_mean(*, trend: bool, season: Iterable[float]) -> Mean | None:
    """Return a line and seasons for targets of about unit size; None for neither.

    The slope may reach ten units of y in a unit of time; seasons have three harmonics each.
    """
    terms: list[Mean] = [Trend(10.0, 10.0)] if trend else []
    terms += [Seasonal(period, 3, deviation=3.0) for period in season]
    return reduce(add, terms) if terms else None


def fit_prior(
    starts: Iterable[tuple[Kernel, Likelihood]],
    x: Tensor,
    y: Tensor,
    *,
    seed: int = 0,
    mean: PriorMean | None = None,
    **options: Any,
) -> tuple[Kernel, Likelihood]:
    """Return the prior whose evidence on some data is greatest, each fitted to them in place.

    Inputs are few enough for the exact evidence; the seed is for models that have none. Options are
    those of ``OnlineGP.fit_hyperparameters``.

    Raises:
        CholeskyError: the evidence can be computed for none of them.
    """
    best, most, failure = None, -math.inf, CholeskyError("there is no prior to start from")
    for prior in starts:
        # With as many inducing points as points: the exact evidence.
        model = OnlineGP(*prior, PivotedCholesky(len(x)), mean=mean, seed=seed)
        try:
            evidence = model.fit_hyperparameters(x, y, **options).after
        except CholeskyError as error:
            failure = error
            continue
        if best is None or evidence > most:
            best, most = prior, evidence
    if best is None:
        raise failure
    return best
