"""Noise schedules β_1..β_S of a diffusion process, in float64, and which steps of it are taken."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from probseq.checks import check_counts
from pseudovideo.spec import LEAST_LINEAR_STEPS

# Of 1,000 steps.
_LINEAR_STEPS, _LINEAR_FIRST, _LINEAR_LAST = 1000, 1e-4, 0.02
_COSINE_OFFSET, _COSINE_MAX = 0.008, 0.999
MAX_LAST_ALPHA_BAR = 0.01
"""Largest ᾱ_S, the share of the image's variance that the last step of a process may leave."""


def linear_betas(num_steps: int) -> Float64[Tensor, " S"]:
    """Return 10⁻⁴ to 0.02 for 1,000 steps; times 1000/S for S steps, with about the same ᾱ_S.

    Ho, Jain & Abbeel 2020, section 4; rescaled as in improved DDPM.
    """
    check_counts(num_steps=num_steps)
    if num_steps < LEAST_LINEAR_STEPS:
        raise ValueError(
            f"num_steps must be at least {LEAST_LINEAR_STEPS} for the linear schedule, whose β "
            f"would reach 1 with fewer, got {num_steps}: take the cosine schedule"
        )
    scale = _LINEAR_STEPS / num_steps
    return torch.linspace(
        scale * _LINEAR_FIRST, scale * _LINEAR_LAST, num_steps, dtype=torch.float64
    )


def cosine_betas(num_steps: int) -> Float64[Tensor, " S"]:
    """Return β_t = 1 − f(t/S)/f((t−1)/S) ≤ 0.999 with f(u) = cos²(π/2 · (u+0.008)/1.008).

    Nichol & Dhariwal 2021, "Improved denoising diffusion probabilistic models", equation 17.
    """
    check_counts(num_steps=num_steps)
    times = torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)
    alpha_bars = ((times + _COSINE_OFFSET) / (1 + _COSINE_OFFSET) * math.pi / 2).cos().square()
    return (1 - alpha_bars[1:] / alpha_bars[:-1]).clamp(max=_COSINE_MAX)


def check_betas(betas: Tensor) -> None:
    """Refuse what is no schedule of variances of the noise that the steps add."""
    if betas.ndim != 1 or betas.dtype != torch.float64 or len(betas) < 2:
        raise ValueError(
            f"betas must be a float64 vector of at least two steps, got {betas.dtype} of shape "
            f"{tuple(betas.shape)}"
        )
    # Negated: NaN is refused, too.
    if not bool(((betas > 0) & (betas < 1)).all()):
        raise ValueError(
            f"betas must lie in (0, 1), got values from {betas.min():g} to {betas.max():g}"
        )
    last = float((1 - betas).prod())
    if last > MAX_LAST_ALPHA_BAR:
        raise ValueError(
            f"betas must leave at most {MAX_LAST_ALPHA_BAR} of the image's variance at the last "
            f"step, as sampling starts from pure noise, got {last:.3g}: take more steps or larger "
            "betas"
        )


def spaced_steps(num_steps: int, count: int) -> tuple[int, ...]:
    """Return ``count`` steps of 0..S−1, evenly spaced from first to last; a single one is 0."""
    check_counts(count=count)
    if count > num_steps:
        raise ValueError(f"count must be at most the {num_steps} steps, got {count}")
    stride = (num_steps - 1) / (count - 1) if count > 1 else 0.0
    steps: list[int] = []
    position = 0.0
    for _ in range(count):
        steps.append(round(position))
        # Added up, not multiplied: on a tie the sum decides as improved DDPM's does.
        position += stride
    return tuple(steps)
