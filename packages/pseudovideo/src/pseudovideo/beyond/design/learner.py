"""What a limited learner draws: a diffusion model whose denoisers are linear and regularised.

A stage draws frames z from given frames c through noisy ones y = √ᾱ z + √(1−ᾱ) ε, as
`VideoDiffusion` does. The learner's predictor of the noise is the linear one that minimises

    E‖ε − W (y, c)‖² + κ‖W‖²,

which is the best of all predictors for Gaussian videos and κ = 0, and else leaves unused what
varies by less than κ among its inputs: in a training that is cut short, those directions of the
inputs are learned last (the ridge is what early stopping of a linear model comes to, κ about one
over step size times steps). Such are the small differences between a noisy frame and the frames
that it is conditioned on, which the last frames of videos are made of.

In the eigenbasis of R = V_zz − B_κ V_cz with B_κ = V_zc (V_cc + κI)⁻¹ all steps are diagonal:

    W y-part  √(1−ᾱ) / s,  c-part  −√(1−ᾱ)√ᾱ / s · B_κ,  with s = ᾱ r + 1 − ᾱ + κ,

so that a whole stage is one eigendecomposition and a recursion of numbers.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from pseudovideo.beyond.design.covariances import VideoCovariance, block, regression
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.stages import Stage


class Draw(NamedTuple):
    """How a stage draws frames: ẑ = H c + noise of covariance Q."""

    gain: Float64[Tensor, "blocks l g"]  # H, without columns for the first stage
    noise: Float64[Tensor, "blocks l l"]  # Q


def mean_error(joint: VideoCovariance, stage: Stage) -> Draw:
    """Return errors of the conditional mean, as large as its own variation: Q = H V_cc Hᵀ."""
    gain = _gain(joint, stage, 0.0)
    return Draw(gain, gain @ block(joint, stage.observed, stage.observed) @ gain.mT)


def limited_draw(
    joint: VideoCovariance, stage: Stage, process: GaussianDiffusion, ridge: float
) -> Draw:
    """Return what ancestral steps with the regularised denoisers draw.

    κ is `ridge`; the process has the diffusion's steps that are taken.
    """
    B = _gain(joint, stage, ridge)
    # R = V_zz − B V_cz = U diag(r) Uᵀ
    residual = block(joint, stage.latent, stage.latent)
    residual = residual - B @ block(joint, stage.observed, stage.latent)
    r, U = torch.linalg.eigh((residual + residual.mT) / 2)
    squares = (U.mT @ B).square().sum(-1)
    # Along an eigenvector y = h·(Uᵀ B c) + √v·n, from pure noise on.
    h, v = torch.zeros_like(r), torch.ones_like(r)
    before = torch.cat((torch.ones(1).to(r), process.alpha_bars.to(r)[:-1]))
    steps = zip(process.alpha_bars.to(r), before, process.betas.to(r), strict=True)
    for step, (alpha_bar, earlier, beta) in reversed([*enumerate(steps)]):
        noise = 1 - alpha_bar
        # Mean and variance of q(y_{s−1} | y_s, x₀).
        from_image = beta * earlier.sqrt() / noise
        from_state = (1 - earlier) * (1 - beta).sqrt() / noise
        least = beta * (1 - earlier) / noise
        s = alpha_bar * r + noise + ridge
        # x̂₀ = (y − √(1−ᾱ) ε̂)/√ᾱ with ε̂ = √(1−ᾱ) (y − √ᾱ Bc)/s
        of_state = from_image * (1 - noise / s) / alpha_bar.sqrt() + from_state
        of_context = from_image * noise / s
        # E(ε − ε̂)² = 1 − (1−ᾱ)/s − κ (1−ᾱ)/s² (1 + ᾱ b²), and of x̂₀ (1−ᾱ)/ᾱ times that.
        error = 1 - noise / s - ridge * noise / s**2 * (1 + alpha_bar * squares)
        # The learned variance at its best, within its range: β̃ + from_image² E(x₀ − x̂₀)² (one
        # number for all pixels), at most β; none in the last step.
        added = least + from_image**2 * noise / alpha_bar * error.mean().clamp_min(0)
        added = torch.minimum(added, beta) if step else torch.zeros_like(added)
        h, v = of_state * h + of_context, of_state**2 * v + added
    rotated = U * h[:, None]
    return Draw(rotated @ (U.mT @ B), (U * v[:, None]) @ U.mT)


def chain(joint: VideoCovariance, draws: dict[Stage, Draw]) -> VideoCovariance:
    """Return the covariance of videos that are drawn stage after stage.

    ẑ_l = H ẑ_g + ξ: Cov(ẑ_l, ẑ_s) = H Cov(ẑ_g, ẑ_s) for earlier frames s, and
    Cov(ẑ_l) = H Cov(ẑ_g) Hᵀ + Q.
    """
    blocks, frames, pixels = joint.shape[:3]
    drawn = torch.zeros(blocks, frames * pixels, frames * pixels).to(joint)
    for stage, (gain, noise) in draws.items():
        start, end = stage.latent[0] * pixels, (stage.latent[-1] + 1) * pixels
        covariance = drawn[:, start:end, start:end]
        if stage.observed:
            first = stage.observed[0] * pixels
            across = gain @ drawn[:, first:start, :start]
            drawn[:, start:end, :start], drawn[:, :start, start:end] = across, across.mT
            covariance += across[:, :, first:] @ gain.mT
        covariance += noise
    return drawn.view(joint.shape)


def _gain(joint: VideoCovariance, stage: Stage, ridge: float) -> Tensor:
    if not stage.observed:
        return joint.new_zeros(len(joint), len(stage.latent) * joint.shape[2], 0)
    return regression(joint, stage.latent, stage.observed, ridge=ridge)
