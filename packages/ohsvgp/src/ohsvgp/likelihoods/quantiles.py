"""Quantiles of predictive mixtures, by inverting their distribution functions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# The last place that is looked at, where exp and sinh can still be squared.
_FARTHEST, _STEPS = 340.0, 100
# In units of the function; round-off of distribution functions is not far below.
_CLOSE = 1e-12


def probabilities(p: float | Tensor, like: Tensor) -> Tensor:
    """Return levels of quantiles in the dtype and on the device of ``like``."""
    levels = torch.as_tensor(p, dtype=like.dtype, device=like.device)
    wrong = levels[~((levels > 0) & (levels < 1))]
    if wrong.numel():
        raise ValueError(f"p must be above 0 and below 1, got {float(wrong.flatten()[0])}")
    return levels


def log_odds(log_tail: Tensor) -> Tensor:
    """Return log P − log(1 − P) of log P; what round-off takes to 0 is held below."""
    held = log_tail.clamp_max(-torch.finfo(log_tail.dtype).eps)
    return held - (-held.expm1()).log()


def invert(function: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Return the z in 0..340 where an increasing function meets its target; 0 if it begins above.

    The end of a bracket doubles until it is high enough; then secants of which an end that stays
    counts half (Illinois), and every third step a bisection.
    """
    low, high = torch.zeros_like(target), torch.ones_like(target)
    below = function(high) < target
    while bool(below.any()) and float(high.max()) < _FARTHEST:
        low = torch.where(below, high, low)
        high = torch.where(below, (2 * high).clamp_max(_FARTHEST), high)
        below = function(high) < target
    under, over = function(low) - target, function(high) - target
    none_under = under >= 0
    eps = torch.finfo(target.dtype).eps
    for step in range(_STEPS):
        middle = 0.5 * (low + high)
        z = high - over * (high - low) / (over - under)
        z = middle if step % 3 == 2 else torch.where((z > low) & (z < high), z, middle)
        value = function(z) - target
        less = value < 0
        # The end that stays counts half; the other one is where the function was just seen.
        under, over = torch.where(less, value, 0.5 * under), torch.where(less, 0.5 * over, value)
        low, high = torch.where(less, z, low), torch.where(less, high, z)
        close = value.abs() <= _CLOSE
        low, high = torch.where(close, z, low), torch.where(close, z, high)
        if bool(((high - low <= 4 * eps * high) | none_under).all()):
            break
    return torch.where(none_under, 0.0, high)


def folded_mean(mean: Tensor, sd: Tensor) -> Tensor:
    """Return E|X| of X ~ N(mean, sd²), 2 sd φ(mean/sd) + mean (2Φ(mean/sd) − 1)."""
    z = mean / sd
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return 2 * sd * density + mean * torch.special.erf(z / math.sqrt(2))


def exp_remainder(x: Tensor) -> Tensor:
    """Return exp x − 1 − x, without the cancellation of large terms; x is held at 300."""
    small = x.clamp(-1e-2, 1e-2)
    series = 1.0
    for k in range(8, 2, -1):  # 1 + x/3 (1 + x/4 (1 + …))
        series = 1 + small / k * series
    near = 0.5 * small.square() * series
    return torch.where(x.abs() < 1e-2, near, x.clamp_max(300.0).expm1() - x)


def stirling(a: Tensor) -> Tensor:
    """Return a log a − a − log Γ(a), a > 0, without the cancellation of large terms."""
    large = a.clamp_min(20.0)
    series = 1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * large**2)) / large**2) / large**2
    return torch.where(
        a < 20.0, a * a.log() - a - a.lgamma(), 0.5 * (large / (2 * math.pi)).log() - series / large
    )
