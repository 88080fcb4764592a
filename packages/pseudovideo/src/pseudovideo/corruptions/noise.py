"""Noise videos in closed form: every frame is a multiple of the image plus mixed noise.

z_{T−t} = √(1−β_t)·m_t + √β_t·ε_t, where m_t is the next cleaner frame (first order) or the mean of
all cleaner frames (high order; thesis section 5.4.2). Both recursions are linear, so the whole
video is z = a·x + L ε with a and L from the same recursion on their rows.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from pseudovideo.spec import PseudoVideoConfig


def noise_betas(config: PseudoVideoConfig) -> Float64[Tensor, " steps"]:
    """Return β_1..β_{T−1}, the smallest next to the image.

    For `matched-noise` they are those of the first-order noise whose frames have the
    signal-to-noise ratios of the high-order ones: ᾱ_t = r_t/(1+r_t) with r_t = a_t²/Σ_s L_ts², and
    β_t = 1 − ᾱ_t/ᾱ_{t−1}. The two videos then tell the same of the image by any single frame and
    differ only in what frames tell together. r never grows with t, because β doesn't fall.
    """
    betas = torch.linspace(
        config.beta_min, config.beta_max, config.num_frames - 1, dtype=torch.float64
    )
    if config.kind != "matched-noise":
        return betas
    mean, mixing = _recursion(betas, high_order=True)
    signal, noise = mean.square(), mixing.square().sum(-1)
    # From the image on: ᾱ = 1, …, the noisiest frame's.
    alpha_bars = (signal / (signal + noise)).flip(0)
    return 1 - alpha_bars[1:] / alpha_bars[:-1]


def noise_coefficients(
    config: PseudoVideoConfig,
) -> tuple[Float64[Tensor, " T"], Float64[Tensor, "T steps"]]:
    """Return coefficients a and L of z = a·x + L ε, with independent standard normal ε_1..ε_{T−1}.

    a is 1 for the image and the last row of L 0; ε_t enters with frame T−t.
    """
    if not config.kind.endswith("noise"):
        raise ValueError(f"config.kind must be a kind of noise, got {config.kind!r}")
    return _recursion(noise_betas(config), high_order=config.kind == "high-order-noise")


def _recursion(betas: Tensor, *, high_order: bool) -> tuple[Tensor, Tensor]:
    steps = len(betas)
    # Columns: the image, then each step's noise.
    frames = [torch.eye(steps + 1, dtype=betas.dtype)[0]]
    fresh = torch.eye(steps + 1, dtype=betas.dtype)[1:]
    for beta, noise in zip(betas, fresh, strict=True):
        around = torch.stack(frames).mean(0) if high_order else frames[-1]  # m_t
        # z_{T−t} = √(1−β_t) m_t + √β_t ε_t
        frames.append((1 - beta).sqrt() * around + beta.sqrt() * noise)
    rows = torch.stack(frames[::-1])
    return rows[:, 0], rows[:, 1:]
