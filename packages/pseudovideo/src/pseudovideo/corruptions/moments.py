"""Mean and covariance of the videos of random images.

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_real, check_sizes
from pseudovideo.corruptions.kinds import KINDS
from pseudovideo.corruptions.videos import corrupted_signal
from pseudovideo.spec import PseudoVideoConfig


class VideoMoments(NamedTuple):
    """First two moments of videos; pixels n = c·h·w in the order (c, h, w).

    Attributes:
        mean: (T, n).
        covariance: (T, n, T, n).
    """

    mean: Float[Tensor, "T n"]
    covariance: Float[Tensor, "T n T n"]


def video_moments(
    mean: Float[Tensor, "c h w"],
    covariance: Float[Tensor, "n n"],
    config: PseudoVideoConfig,
    *,
    hidden: Float[Tensor, " draws"] | None = None,
) -> VideoMoments:
    """Return moments of the videos of images with mean μ and covariance Σ, of any distribution.

    A frame is A_t x + Σ_k L_tk ε_k, hence E z_t = A_t μ and
    Cov(z_s, z_t) = A_s Σ A_tᵀ + (L Lᵀ)_st I.

    Args:
        mean: μ, which also says how pixels are arranged.
        covariance: Σ, symmetric.
        config: the kind of video.
        hidden: what the order of the patches of `patch-mask` is drawn from: the moments are those
            given this order, P standard normal numbers, the smallest's patch shown first.

    Raises:
        ValueError: tensors other than float32 and float64, a covariance that is not that of c·h·w
            pixels, no such videos of such images, or `hidden` is missing.
    """
    check_sizes("mean", mean, "c", "h", "w")
    check_sizes("covariance", covariance, mean.numel(), mean.numel())
    check_real(mean=mean, covariance=covariance)

    def frames(rows: Tensor) -> Tensor:
        images = rows.reshape(-1, *mean.shape)
        known = None if hidden is None else hidden.to(rows).expand(len(images), -1)
        signal = corrupted_signal(images, config, hidden=known)
        return torch.cat([signal, images[:, None]], dim=1).flatten(2)

    # The linear map takes one side of Σ, then the other: first (n, T, n), then (T·n, T, n).
    once = frames(covariance).movedim(0, -1)
    both = frames(once).unflatten(0, once.shape[:2])
    mixing_matrix = KINDS[config.kind].mixing(config)
    if mixing_matrix is not None:
        added = both[:-1, :, :-1].diagonal(dim1=1, dim2=3)
        added += (mixing_matrix @ mixing_matrix.mT).to(both)[..., None]
    return VideoMoments(frames(mean)[0], both)
