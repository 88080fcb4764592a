"""Limits of hyperparameters in the units of data, within which a fit looks for them.

Where data say nothing of a parameter its likelihood rises for ever, or is flat: the noise of zeros,
the lengthscale of a constant, the degrees of freedom of Student's t without outliers. A prior that
is uniform in the logarithm within wide limits changes no fit that data determine and stops those.
The dispersion of few counts, whose small values explain any zeros by a tail without end, has a
log-normal one. So has the variance of a ``Walk``: a short series is often explained by swings about
a mean just as well, to which forecasts would then turn back.
Not in the papers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ohsvgp.likelihoods import Likelihood
from probseq.kernels import Kernel, RationalQuadratic, StationaryKernel, Walk

# Of targets whose spread is less than this share of their size, nothing but round-off is left.
_ROUND_OFF = 1e-12
# Around values that lie beyond the limits, or searches could not leave them.
_BEYOND_FACTOR, _WIDENING = 1.1, 3.0
# Of a walk: its share of the squares of the targets' steps, and the factor of its prior.
_WALK_SHARE, _WALK_FACTOR = 0.05, 3.0


class Limits(NamedTuple):
    """Interval of a parameter, in user units, in shapes that broadcast with it."""

    low: Tensor  # lower limit
    high: Tensor  # upper limit
    # Where a search may start instead of the value of now, which is far outside
    start: Tensor | None = None
    # (median, factor) of a log-normal one between the limits; None for a uniform one
    prior: tuple[float, float] | None = None


class _Units(NamedTuple):
    """Units of the data."""

    least: Tensor  # the least mean square of targets over series
    most: Tensor  # the largest
    span: Tensor  # upper limit of lengthscales
    gap: Tensor  # lower limit of lengthscales
    scales: tuple[float, float]  # limits of an outputscale, as shares of a mean square
    rate: Tensor  # mean square of the targets' steps, per time


def data_limits(
    kernel: Kernel,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    features: Tensor | None = None,
) -> dict[str, Limits]:
    """Return the limits of all parameters of a model, by their names.

    | parameter | from | to |
    |---|---|---|
    | lengthscale of times | a tenth of their mean gap | 100 times their span |
    | of points | 1/1000 of a column's span | 1000 times |
    | outputscale, weight | 1e-6 of the targets' mean square | 1e6 times |
    | noise, scale² | 1e-6 of it | 10 times |
    | outputscale beside counts and labels | 1e-4 of 1 + the mean square of log(y + ½) | 4 times |
    | of a walk, log-normal: a step has 1/20 of the mean square of steps, factor 3 | as others | |
    | dispersion, log-normal of median 3 and factor 3 | 0.01 | 1e6 |
    | df | 2.1 | 1000 |
    | alpha | 0.01 | 1000 |
    | period | a tenth of its value now | 10 times |
    | others | 1e-6 of their value now | 1e6 times |

    The targets' mean square is of what their mean's features leave, the least over series from
    below and the largest from above; the prior variance of now where nothing is left. Limits are
    widened by a factor of three where the values of now lie beyond.

    Targets count where the mask is True, all if None; features are those of the mean.
    """
    units = _units(kernel, likelihood, x, y, mask, features)
    limits: dict[str, Limits] = {}
    for prefix, module in (("kernel", kernel), ("likelihood", likelihood)):
        for path, owner in module.named_modules(prefix=prefix):
            for name, raw in owner.named_parameters(recurse=False):
                now = raw.detach().exp()
                low, high = _limits(name, owner, now, units)
                outside = bool(((now < low) | (now > high)).any())
                prior = (3.0, 3.0) if name == "raw_dispersion" else None
                if isinstance(owner, Walk) and name == "raw_outputscale":
                    # A step of h has the variance 2σ²h/ℓ.
                    median = _WALK_SHARE * units.rate * 0.5 * owner.lengthscale.detach().max()
                    prior = (float(median.clamp(low.max(), high.min())), _WALK_FACTOR)
                limits[f"{path}.{name}"] = Limits(
                    torch.where(now < _BEYOND_FACTOR * low, now / _WIDENING, low),
                    torch.where(now * _BEYOND_FACTOR > high, now * _WIDENING, high),
                    (low * high).sqrt().expand_as(now) if outside else None,
                    prior,
                )
    return limits


def near_limits(kernel: Kernel, likelihood: Likelihood) -> dict[str, Limits]:
    """Return limits of half and twice the values of now."""
    modules = {"kernel": kernel, "likelihood": likelihood}
    return {
        f"{owner}.{name}": Limits(0.5 * raw.detach().exp(), 2 * raw.detach().exp())
        for owner, module in modules.items()
        for name, raw in module.named_parameters()
    }


def _limits(name: str, owner: nn.Module, now: Tensor, units: _Units) -> tuple[Tensor, Tensor]:
    least, most, (low, high) = units.least, units.most, units.scales
    one = torch.ones_like(least)
    match name:
        case "raw_lengthscale" if isinstance(owner, StationaryKernel | RationalQuadratic):
            return units.gap, units.span
        case "raw_mean" | "raw_deviation":  # frequencies
            return 1 / units.span, 1 / units.gap
        case "raw_outputscale" | "raw_weight":
            return low * least, high * most
        case "raw_noise":
            return 1e-6 * least, 10 * most
        case "raw_scale":
            return 1e-3 * least.sqrt(), (10 * most).sqrt()
        case "raw_dispersion":
            return 1e-2 * one, 1e6 * one
        case "raw_df":
            return 2.1 * one, 1e3 * one
        case "raw_alpha":
            return 1e-2 * one, 1e3 * one
        case "raw_period":
            return now / 10, now * 10
        case _:
            return now / 1e6, now * 1e6


def _units(
    kernel: Kernel,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None,
    features: Tensor | None,
) -> _Units:
    counted = torch.ones_like(y, dtype=torch.bool) if mask is None else mask.expand_as(y)
    if likelihood.continuous:
        scales, targets = (1e-6, 1e6), y
    else:
        scales, targets = (1e-4, 4.0), _latent(likelihood, y)
        targets = (targets.square() + (likelihood.start(y) is not None)).sqrt()
    rest = targets * counted
    if likelihood.continuous and features is not None:
        # Features of any units: each of length one.
        length = features.norm(dim=-2, keepdim=True)
        basis = torch.linalg.qr(features / length.where(length > 0, 1.0)).Q
        rest = (rest - (rest @ basis) @ basis.mT) * counted
    size, squares = ((v * counted).square().sum(-1).flatten() for v in (targets, rest))
    count = counted.sum(-1).clamp_min(1).flatten()
    squares = (squares / count)[squares > _ROUND_OFF**2 * size]
    if not len(squares):
        squares = kernel.diag(x).detach().flatten()
    # Of points columns have extents, and no gaps.
    low, high = (0.1 / len(x), 100.0) if x.shape[-1] == 1 else (1e-3, 1e3)
    span = (x.amax(0) - x.amin(0)).to(y)
    now = kernel.resolution.detach().min()
    span = span.where(span > 0, now if bool(now.isfinite()) else 1.0)
    steps, gaps = _latent(likelihood, y).diff(), x[:, 0].diff()
    both = counted[..., 1:] & counted[..., :-1] & (gaps > 0)
    gained, time = (steps.square() * both).sum(), (gaps * both).sum()
    rate = gained / time if time > 0 else squares.max() / span.max()
    return _Units(squares.min(), squares.max(), high * span, low * span, scales, rate)


def _latent(likelihood: Likelihood, y: Tensor) -> Tensor:
    """Return targets, or what a process beside counts has for them; a deviation of five of odds."""
    if likelihood.continuous:
        return y
    latent = likelihood.start(y)
    return 5.0 * (2 * y - 1) if latent is None else latent
