"""Predictive distributions of new values: intervals, quantiles and draws."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ohsvgp.beyond.means import process_of
from ohsvgp.inducing import continuous
from ohsvgp.likelihoods import Likelihood
from ohsvgp.online import OnlineGP
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.clock import Clock
from probseq.checks import check_counts, check_positive
from probseq.gaussians import DiagonalGaussian, JointGaussian
from probseq.linalg import default_jitter

# Of the prior's variance: where data explain less, the prior answers.
_MIN_EXPLAINED_SHARE = 0.05


class ExtrapolationWarning(UserWarning):
    """A forecast reaches so far beyond the data that the prior answers."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """Predictive distribution of y at n stamps; later updates of the model do not change it.

    Not in the papers.
    """

    stamps: np.ndarray  # numbers or ``datetime64``, shape (n,); points of shape (n, dim)
    marginal: DiagonalGaussian  # posterior of f stamp by stamp, without noise, in float64
    prior: Tensor  # variance of f before any data, shape (n,) or (*b, n)
    # that without the kernel's white noise, of which data tell nothing; the same shape
    smooth: Tensor
    beside: Tensor  # that without the mean
    likelihood: Likelihood  # of y given f
    joint: Callable[[], JointGaussian] = field(repr=False)  # computes ``latent``
    dtype: torch.dtype = torch.float64  # of what the methods return

    @cached_property
    def latent(self) -> JointGaussian:
        """Return the joint posterior of f, without noise, in float64; O(n²), on first use."""
        with torch.no_grad():
            return self.joint()

    @property
    def mean(self) -> Float[Tensor, "*b n"]:
        """Return the mean of y."""
        return self._moments()[0].to(self.dtype)

    @property
    def variance(self) -> Float[Tensor, "*b n"]:
        """Return the variance of y, noise included."""
        return self._moments()[1].to(self.dtype)

    @property
    def beyond(self) -> Bool[Tensor, " n"]:
        """Return where the prior answers: data explain less than 5 % of f's variance in any series.

        Of what f is beside the kernel's white noise.
        """
        explained = self.prior - self.marginal.variance >= _MIN_EXPLAINED_SHARE * self.smooth
        return ~explained.reshape(-1, len(self.stamps)).any(0)

    def quantile(self, p: float | Sequence[float] | Tensor) -> Float[Tensor, "..."]:
        """Return the least y with P(Y ≤ y) ≥ p, stamp by stamp; of counts whole numbers.

        Levels p have the shape (*b, n), or are q of them, of shape (q, *b, n).
        """
        mean = self.marginal.mean
        levels = _levels("p", p, mean)
        if levels.ndim > 1:
            raise ValueError(f"p must be a level or a list of them, got {tuple(levels.shape)}")
        levels = levels.reshape(*levels.shape, *(1,) * mean.ndim)
        return (
            self.likelihood.quantile(mean, self.marginal.variance, levels)
            .reshape(*levels.shape[: levels.ndim - mean.ndim], *mean.shape)
            .to(self.dtype)
        )

    def interval(self, level: float) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n"]]:
        """Return both ends of what holds y with a probability, as much below as above."""
        width = _levels("level", level, self.marginal.mean)
        if width.ndim or not 0.0 < float(width) < 1.0:
            raise ValueError(f"level must be above 0 and below 1, got {level!r}")
        low, high = self.quantile(torch.stack([0.5 * (1.0 - width), 0.5 * (1.0 + width)]))
        return low, high

    def sample(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "s *b n"]:
        """Draw y, jointly over the stamps."""
        check_counts(num_samples=num_samples)
        latent = self.latent
        # What round-off does to a posterior is a share of the process' variance, not of its own.
        jitter = torch.diag_embed(default_jitter(self.beside.dtype) * self.beside)
        joint = JointGaussian(latent.mean, latent.covariance + jitter)
        with torch.no_grad():
            f = joint.rsample((num_samples,), generator=generator)
            return self.likelihood.sample(f, generator).to(self.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = self.likelihood.predictive_moments(self.marginal.mean, self.marginal.variance)
        return y.mean, y.variance


def _levels(name: str, value: object, like: Tensor) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be of numbers above 0 and below 1, got {value!r}") from None


def forecast(gp: OnlineGP, t: Any, *, step: float | None = None, stacklevel: int = 2) -> Forecast:
    """Return the predictive distribution of new values. Not in the papers.

    Args:
        gp: a model; it stays as it is.
        t: stamps not before t0, or points; or a whole number of steps beyond the latest stamp.
        step: time between steps, in units of time. If None, months, quarters, years or business
            days where the latest stamps come so, else the median of the latest gaps.
        stacklevel: of ``warnings.warn``, from here.

    Warns:
        ExtrapolationWarning: posterior variances of f beyond the data exceed 95 % of the prior's;
            once a model.
    """
    x = stamps_ahead(gp, t, step)
    # Later fits change parameters in place.
    kernel, likelihood = copy.deepcopy((gp.kernel, gp.likelihood))
    process, state = replace(gp.process, kernel=kernel, likelihood=likelihood), gp.state
    with torch.no_grad():
        marginal = process.predict(state, x)
        # Most kernels are neither noise nor a mean in part, and all three the same.
        kernels = (process.prior, continuous(process.prior), process_of(process.prior))
        distinct = {id(kernel): kernel for kernel in kernels}
        variances = {key: kernel.diag(x) for key, kernel in distinct.items()}
        prior, smooth, beside = (variances[id(kernel)] for kernel in kernels)
    ahead = Forecast(
        gp.user_inputs(x),
        marginal,
        prior,
        smooth,
        beside,
        likelihood,
        lambda: process.predict_joint(state, x),
        gp.dtype,
    )
    last = gp.spacing.last
    if last is not None and len(x) and ExtrapolationWarning not in gp.warned:
        lost = ahead.beyond & (x[:, 0] > last)
        if bool(lost.any()):
            gp.warned.add(ExtrapolationWarning)
            first = ahead.stamps[int(lost.nonzero()[0, 0])]
            warnings.warn(
                f"from {first} on the forecast is the prior's: the data, which end at "
                f"{gp.user_inputs(x.new_tensor([[last]]))[0]}, explain less than 5 % of f's "
                "variance there. Put what should go on into mean=, or a periodic or linear kernel",
                ExtrapolationWarning,
                stacklevel=stacklevel,
            )
    return ahead


def stamps_ahead(gp: OnlineGP, t: Any, step: float | None) -> Tensor:
    """Return inputs of a forecast, shape (n, dim), times counted from t0."""
    if not isinstance(t, Integral | np.bool_):
        if step is not None:
            raise ValueError(f"step must be left out where t holds stamps, got {step}")
        x = gp.inputs(t)
        if gp.of_time and x.numel() and float(x.min()) < 0:
            first = gp.user_inputs(x.new_zeros(1, 1))[0]
            raise ValueError(
                f"t must not lie before t0={first}, got {gp.user_inputs(x.min()[None, None])[0]}"
            )
        return x
    if not gp.of_time:
        raise ValueError(f"t must be points of dim {gp.kernel.dim}, got {t}: they have no steps")
    check_counts(t=t)
    if step is not None:
        check_positive(step=step)
    last = gp.spacing.last
    if last is None:
        raise ValueError(f"t must be stamps before the first update, got {t} steps ahead")
    clock = gp.clock
    if step is None and clock is not None and clock.unit is not None:
        second = clock.unit / 10**9
        at = clock.nanoseconds(last) / 10**9
        gaps = [gap * second for gap in gp.spacing.gaps]
        if (ahead := calendar_ahead(at, gaps, int(t), clock.zone)) is not None:
            stamps = np.array([round(stamp) for stamp in ahead], dtype="datetime64[s]")
            return clock.internal(stamps).to(gp.kernel.like)[:, None]
    step = gp.spacing.step if step is None else step
    if step is None:
        raise ValueError("step must be a number where there are no two different stamps, got None")
    lengths = (clock or Clock(0.0)).lengths_ahead(last, gp.spacing.gaps, step, int(t))
    return torch.tensor(lengths, dtype=torch.float64).to(gp.kernel.like)[:, None]
