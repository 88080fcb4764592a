"""Limits of hyperparameters in the units of data, within which a fit looks for them.

Where data say nothing of a parameter its likelihood rises for ever, or is flat: the noise of zeros,
the lengthscale of a constant. A prior that is uniform in the logarithm within wide limits changes
no fit that data determine and stops those; kernels and likelihoods have the limits of their own
parameters (``limits``). Not in the papers.
"""

import torch
from torch import Tensor

from ohsvgp.likelihoods import Likelihood
from probseq.kernels import Kernel
from probseq.kernels.base import DataUnits, Limits

# Of targets whose spread is less than this share of their size, nothing but round-off is left.
_ROUND_OFF = 1e-12
# Around values that lie beyond the limits, or searches could not leave them.
_BEYOND_FACTOR, _WIDENING = 1.1, 3.0
# Of a parameter that has none, about its value of now.
_FAR = 1e6


def data_limits(
    kernel: Kernel,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    features: Tensor | None = None,
) -> dict[str, Limits]:
    """Return the limits of all parameters of a model, by their names.

    They are widened by a factor of three where the values of now lie beyond. Targets count where
    the mask is True, all if None; features are those of the mean beside the process.
    """
    units = data_units(kernel, likelihood, x, y, mask, features)
    limits: dict[str, Limits] = {}
    for prefix, module in (("kernel", kernel), ("likelihood", likelihood)):
        for path, owner in module.named_modules(prefix=prefix):
            limits_by_name = owner.limits(units) if isinstance(owner, Kernel | Likelihood) else {}
            for name, raw in owner.named_parameters(recurse=False):
                now = raw.detach().exp()
                low, high, prior, _ = limits_by_name.get(name, Limits(now / _FAR, now * _FAR))
                outside = bool(((now < low) | (now > high)).any())
                limits[f"{path}.{name}"] = Limits(
                    torch.where(now < _BEYOND_FACTOR * low, now / _WIDENING, low),
                    torch.where(now * _BEYOND_FACTOR > high, now * _WIDENING, high),
                    prior,
                    (low * high).sqrt().expand_as(now) if outside else None,
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


def data_units(
    kernel: Kernel,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None,
    features: Tensor | None,
) -> DataUnits:
    """Return spans and gaps of the inputs, and mean squares of what their mean leaves of targets.

    Lengthscales are from a tenth of the mean gap to 100 spans of times, or from 1/1000 to 1000
    spans of a column of points; outputscales from 1e-6 to 1e6 of the mean square (the prior's
    variance where nothing is left), beside counts and labels from 1e-4 to 4 of 1 + that of the
    latent values.
    """
    counted = torch.ones_like(y, dtype=torch.bool) if mask is None else mask.expand_as(y)
    if likelihood.continuous:
        scales, targets = (1e-6, 1e6), y
    else:
        scales, targets = (1e-4, 4.0), _latent(likelihood, y)
        targets = (targets.square() + (likelihood.start(y) is not None)).sqrt()
    residual = targets * counted
    if likelihood.continuous and features is not None:
        # Features of any units: each of length one.
        length = features.norm(dim=-2, keepdim=True)
        basis = torch.linalg.qr(features / length.where(length > 0, 1.0)).Q
        residual = (residual - (residual @ basis) @ basis.mT) * counted
    size, squares = ((v * counted).square().sum(-1).flatten() for v in (targets, residual))
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
    least, most = squares.min(), squares.max()
    variance = Limits(scales[0] * least, scales[1] * most)
    return DataUnits(low * span, high * span, variance, least, most, rate)


def _latent(likelihood: Likelihood, y: Tensor) -> Tensor:
    """Return targets, or what a process beside counts has for them; a deviation of five of odds."""
    if likelihood.continuous:
        return y
    latent = likelihood.start(y)
    return 5.0 * (2 * y - 1) if latent is None else latent
