"""Theorem 5.4.1 in numbers: how well Gaussian pseudo videos can be predicted at best.

Noise commutes with rotations, so that a video of images with covariance Σ = U diag(λ) Uᵀ falls
into independent videos of single numbers x ~ N(0, λ_i): z = a·x + L ε. Theirs is the exact minimum
of E‖z_t − g(z_S)‖² over all functions g, the sum of the conditional variances.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probseq.checks import check_counts, check_floating, check_sizes, check_whole
from pseudovideo.corruptions.noise import noise_coefficients
from pseudovideo.pixels import check_pixels
from pseudovideo.spec import PseudoVideoConfig


class PredictionErrors(NamedTuple):
    """Minimal mean squared errors of one kind of video, per pixel; frames are numbered from 1."""

    # Entry k−1 is that of the image from the k frames before it (eq. 5.10): it never grows with k,
    # and is constant for first-order noise
    from_nearest: Float64[Tensor, " steps"]
    # Entry k−1 is that of the image from the frames 1..k: what a first window that is generated
    # jointly says of it
    from_first: Float64[Tensor, " steps"]
    # Entry t−2 is that of frame t from the frames of the context before it
    next_frame: Float64[Tensor, " steps"]
    # That from frame t−1 alone; equal to `next_frame` for first-order noise
    next_from_previous: Float64[Tensor, " steps"]


def image_spectrum(images: Float[Tensor, "n c h w"]) -> Float64[Tensor, " pixels"]:
    """Return eigenvalues of the covariance of images, falling; zero beyond their number."""
    check_sizes("images", images, "n", "c", "h", "w")
    check_floating(images=images)
    if len(images) < 2 or not images.numel():
        raise ValueError(
            "images must be at least 2, not empty, to have a covariance, got shape "
            f"{tuple(images.shape)}"
        )
    check_pixels(images=images)
    rows = images.flatten(1).double()
    rows = rows - rows.mean(0)
    # The smaller of the two products has all eigenvalues that are not zero.
    gram = rows @ rows.mT if len(rows) < rows.shape[1] else rows.mT @ rows
    eigenvalues = torch.linalg.eigvalsh(gram / (len(rows) - 1)).clamp_min(0).flip(0)
    return torch.nn.functional.pad(eigenvalues, (0, rows.shape[1] - len(eigenvalues)))


def prediction_error(
    spectrum: Float[Tensor, " d"], config: PseudoVideoConfig, *, frame: int, context: Iterable[int]
) -> Float64[Tensor, " d"]:
    """Return the conditional variance of a frame given earlier ones, along each eigenvector.

    With x = √λ·u, λ the `spectrum`, eigenvalues of the images' covariance, a frame is the product
    of a row f_t = (√λ a_t, L_t) and standard normal numbers, and its conditional variance is the
    squared distance of f_t from the span of the context's rows: no difference of large numbers,
    exact where λ or β is 0.

    The frame is one of 0..T−1, the last the image; the context are earlier ones, none leaves the
    frame's variance. The config is a kind of noise.
    """
    mean, mixing = noise_coefficients(config)
    earlier = sorted(set(context))
    check_whole(
        frame=frame, **{f"context[{index}]": number for index, number in enumerate(earlier)}
    )
    if not 0 <= frame < config.num_frames:
        raise ValueError(f"frame must be 0..{config.num_frames - 1}, got {frame}")
    if earlier and not 0 <= earlier[0] <= earlier[-1] < frame:
        raise ValueError(f"context must be frames before {frame}, 0..{frame - 1}, got {earlier}")
    check_sizes("spectrum", spectrum, "d")
    check_floating(spectrum=spectrum)
    if not spectrum.numel():
        raise ValueError("spectrum must not be empty, got shape (0,)")
    if not (spectrum.isfinite() & (spectrum >= 0)).all():
        raise ValueError(
            f"spectrum must have finite eigenvalues of 0 or more, got {float(spectrum.min()):.3g} "
            f"to {float(spectrum.max()):.3g}"
        )
    mean, mixing = mean.to(spectrum.device), mixing.to(spectrum.device)
    signal = spectrum.double().sqrt()[:, None] * mean
    rows = torch.cat([signal[..., None], mixing.expand(len(signal), -1, -1)], dim=-1)
    target = rows[:, frame, None]
    if earlier:
        # Rows depend on each other only where all β are 0 and frames are equal: a direction too
        # many does no harm then, the distance being 0.
        directions = torch.linalg.svd(rows[:, earlier], full_matrices=False)[2]
        target = target - target @ directions.mT @ directions
    return target.square().sum((-2, -1))


def prediction_errors(
    spectrum: Float[Tensor, " d"], config: PseudoVideoConfig, *, context: int | None = None
) -> PredictionErrors:
    """Return the errors that matter when videos are generated frame after frame.

    The spectrum has the eigenvalues of the images' covariance, the config a kind of noise with at
    least 2 frames. In `next_frame` a frame is predicted from the C = `context` before it, by
    default all.
    """
    last = config.num_frames - 1
    if last < 1:
        raise ValueError(f"config.num_frames must be at least 2, got {config.num_frames}")
    if context is not None:
        check_counts(context=context)
    reach = last if context is None else context

    def error(frame: int, first: int, end: int) -> Tensor:
        return prediction_error(spectrum, config, frame=frame, context=range(first, end)).mean()

    steps = range(1, last + 1)
    return PredictionErrors(
        torch.stack([error(last, last - k, last) for k in steps]),
        torch.stack([error(last, 0, k) for k in steps]),
        torch.stack([error(t, max(0, t - reach), t) for t in steps]),
        torch.stack([error(t, t - 1, t) for t in steps]),
    )
