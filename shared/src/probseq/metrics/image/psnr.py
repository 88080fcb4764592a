"""Peak signal-to-noise ratio."""

import math

from jaxtyping import Float
from torch import Tensor

from probseq.metrics._checks import check_finite, check_same_shape


def psnr(
    images: Float[Tensor, "n c h w"],
    references: Float[Tensor, "n c h w"],
    *,
    data_range: float = 2.0,
) -> Float[Tensor, " n"]:
    """Return the PSNR of each image, 10 log₁₀(data_range² / MSE) in dB.

    Args:
        images: reconstructions; clamp them to the references' range first, as a picture would be.
        references: originals.
        data_range: largest value less smallest that an image can have: 2 for −1..1.

    Returns:
        A number for each image, float64; infinity where the two are identical.

    Raises:
        ValueError: shapes that differ or are no images', NaN or infinity, or a range not above 0.

    Example:
        >>> import torch
        >>> flat = torch.zeros(1, 1, 2, 2)
        >>> round(float(psnr(flat + 0.2, flat)), 4)
        20.0
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape (n, c, h, w), got {tuple(images.shape)}")
    check_same_shape("images", images, "references", references)
    if not 0.0 < data_range < math.inf:
        raise ValueError(f"data_range must be above 0 and finite, got {data_range}: 2 for -1..1")
    images = check_finite("images", images.detach()).double()
    references = check_finite("references", references.detach()).double()
    error = (images - references).square().flatten(1).mean(dim=1)
    return 10.0 * (data_range**2 / error).log10()
