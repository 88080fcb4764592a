"""Covariances of Gaussian pseudo videos, in independent blocks, and conditioning within them.

Images with covariance Σ make videos that are Gaussian, given the hidden order of a mask. Noise
commutes with rotations: along the eigenvectors of Σ a video falls into one small video for each
eigenvalue. Other corruptions don't share Σ's eigenvectors and are one block of all pixels. What
follows needs not know which: tensors are (blocks, frames, pixels of a block, ...).

Images are read at 8 bits. Rounding is white noise of variance D = (2/255)²/12, which every frame
without noise of its own carries, too: a blurred image of infinite precision would be the image.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probseq.checks import check_real, check_sizes
from pseudovideo.corruptions.base import ImageShape
from pseudovideo.corruptions.gaussian import check_some_images
from pseudovideo.corruptions.kinds import KINDS, cached_operators
from pseudovideo.corruptions.moments import video_moments
from pseudovideo.corruptions.noise import NOISES, noise_coefficients
from pseudovideo.spec import PseudoVideoConfig

ROUNDING = (2 / 255) ** 2 / 12
"""D, the variance of rounding images in -1..1 to 8 bits."""

VideoCovariance = Float64[Tensor, "blocks T m T m"]
"""Covariance of a video, blocks that are independent of each other."""


def image_covariance(images: Float[Tensor, "n c h w"]) -> Float64[Tensor, "d d"]:
    """Return the covariance of images and of their rounding, Σ + D I.

    Args:
        images: in −1..1, at least two.

    Raises:
        ValueError: fewer than two images, or values that are no finite floats.
    """
    check_some_images(images)
    covariance = images.flatten(1).double().mT.cov().reshape(2 * (images[0].numel(),))
    return covariance + ROUNDING * torch.eye(len(covariance), dtype=torch.float64)


def video_covariance(
    covariance: Float[Tensor, "d d"],
    shape: ImageShape,
    config: PseudoVideoConfig,
    *,
    hidden: Float[Tensor, " draws"] | None = None,
) -> VideoCovariance:
    """Return the covariance of the videos of images with covariance Σ.

    Args:
        covariance: Σ of the d = c·h·w pixels, positive definite.
        shape: (c, h, w).
        config: the kind of video.
        hidden: what the order of the patches of `patch-mask` is drawn from.

    Returns:
        (d, T, 1, T, 1) for kinds of noise, (1, T, d, T, d) for others.

    Raises:
        ValueError: Σ is not that of c·h·w pixels, there are no such videos of such images, or
            `hidden` is missing.
    """
    pixels = shape.channels * shape.height * shape.width
    check_sizes("covariance", covariance, pixels, pixels)
    check_real(covariance=covariance)
    covariance = covariance.double()
    cached_operators(config, shape, covariance.device, covariance.dtype)  # refuses other shapes
    steps = config.num_frames - 1
    if config.kind in NOISES and config.beta_min > 0:
        # Cov(z_s, z_t) = a_s a_t λ + (L Lᵀ)_st
        mean, mixing = (table.to(covariance) for table in noise_coefficients(config))
        spectrum = torch.linalg.eigvalsh(covariance)
        joint = spectrum[:, None, None] * torch.outer(mean, mean) + mixing @ mixing.mT
        return joint[:, :, None, :, None]
    zero = covariance.new_zeros(shape)
    joint = video_moments(zero, covariance, config, hidden=hidden).covariance
    if KINDS[config.kind].mixing(config) is None or config.beta_min == 0:
        each = joint[:steps, :, :steps].diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1)
        each += ROUNDING
    return joint[None]


def block(
    joint: VideoCovariance, rows: Sequence[int], columns: Sequence[int]
) -> Float64[Tensor, "blocks r c"]:
    """Return the covariance of some frames with others, as matrices."""
    chosen = joint[:, list(rows)][:, :, :, list(columns)]
    return chosen.flatten(3).flatten(1, 2)


def regression(
    joint: VideoCovariance, latent: Sequence[int], observed: Sequence[int], *, ridge: float = 0.0
) -> Tensor:
    """Return B = V_lo (V_oo + κI)⁻¹, by which frames are best predicted from others linearly."""
    known = block(joint, observed, observed)
    known = known + ridge * torch.eye(known.shape[-1]).to(known)
    factor = torch.linalg.cholesky(known)
    return torch.cholesky_solve(block(joint, observed, latent), factor).mT


def innovation(
    joint: VideoCovariance, latent: Sequence[int], observed: Sequence[int]
) -> Float64[Tensor, "blocks l l"]:
    """Return S = V_ll − V_lo V_oo⁻¹ V_ol, the covariance of frames given others."""
    marginal = block(joint, latent, latent)
    if not observed:
        return marginal
    factor = torch.linalg.cholesky(block(joint, observed, observed))
    half = torch.linalg.solve_triangular(factor, block(joint, observed, latent), upper=False)
    return marginal - half.mT @ half
