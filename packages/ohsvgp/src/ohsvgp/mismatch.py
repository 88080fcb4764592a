"""Warn where the first targets lie where the prior expects none: in raw units, as a rule.

Not in the papers.
"""

import torch
from torch import Tensor

from ohsvgp.likelihoods import Gaussian, StudentT
from ohsvgp.process import Process
from ohsvgp.stream.batch import Data

# The square of a standard normal value that exceeds this comes once in a thousand. With any
# covariance half of the targets exceed it at most twice in a thousand (Markov's inequality).
_FAR_SQUARE = 10.83
# Of the noise: targets of less variance, if there are so many, are noise to the model.
_LEAST_SHARE, _MIN_TARGETS, _ROUND_OFF = 0.01, 10, 1e-24


class PriorMismatchWarning(UserWarning):
    """The first targets have a level or scale that the prior does not expect."""


def mismatch(process: Process, data: Data) -> str | None:
    """Return what the prior does not expect of the first targets, and what to do; None if it does.

    Far is a series of whose targets half are beyond 3.3 standard deviations of the prior.
    """
    x, y, mask, weights = data
    likelihood, none = process.likelihood, torch.zeros_like(y[..., :1])
    latent = y if likelihood.continuous else likelihood.start(y)
    if latent is None or not y.shape[-1]:
        return None
    with torch.no_grad():
        noise = none
        if isinstance(likelihood, Gaussian):
            noise = likelihood.noise[..., None]
        elif isinstance(likelihood, StudentT):
            noise = likelihood.scale[..., None].square()
        prior = process.prior.diag(x) + noise
        hidden = torch.zeros_like(y, dtype=torch.bool) if mask is None else ~mask.expand_as(y)
        observed = latent.masked_fill(hidden, torch.nan)
        squares = (observed.square() / prior).nanmedian(-1).values
        count = (~hidden).sum(-1)
        mean = observed.nanmean(-1, keepdim=True)
        variance = (observed - mean).square().nanmean(-1)
        small = (variance < _LEAST_SHARE * noise[..., 0]) & (count >= _MIN_TARGETS)
        small &= variance > _ROUND_OFF * mean[..., 0].square()  # a constant has no scale
    far = squares > _FAR_SQUARE
    of_y = "y" if likelihood.continuous else "the logarithms of y"
    if bool(far.any()):
        level, scale = _of_first(mean[..., 0], far), _of_first(variance, far).sqrt()
        expected = float(prior.mean()) ** 0.5
        return (
            f"{of_y} lies about {float(level):.3g} ± {float(scale):.3g}, where the prior expects "
            f"0 ± {expected:.3g}, to which forecasts turn back: put the level and what goes on "
            "into mean=Level(deviation), Trend or Seasonal, fit the scale by refit=Refit(), or "
            "standardise y"
        )
    if bool(small.any()) and weights is None:
        scale, sigma = _of_first(variance, small).sqrt(), float(noise.mean()) ** 0.5
        return (
            f"{of_y} has a deviation of {float(scale):.3g}, all of it noise to a likelihood that "
            f"expects {sigma:.3g}: fit the scale by refit=Refit(), give a lower noise, or "
            "standardise y"
        )
    return None


def _of_first(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the value of the first chosen series."""
    return values.expand(chosen.shape)[chosen][0]
