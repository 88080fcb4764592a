"""Peak signal-to-noise ratio."""

from jaxtyping import Float
from torch import Tensor

from probseq.checks import as_finite, check_same_shape


def psnr(
    images: Float[Tensor, "n c h w"], references: Float[Tensor, "n c h w"]
) -> Float[Tensor, " n"]:
    """Return the PSNR of each image, 10 log₁₀(2² / MSE) in dB, in float64.

    It is infinity where the two are identical. Clamp reconstructions to −1..1 first, as a picture
    would be.

    Example:
        >>> import torch
        >>> flat = torch.zeros(1, 1, 2, 2)
        >>> round(float(psnr(flat + 0.2, flat)), 4)
        20.0
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape (n, c, h, w), got {tuple(images.shape)}")
    check_same_shape(references=references, images=images)
    images = as_finite("images", images.detach()).double()
    references = as_finite("references", references.detach()).double()
    error = (images - references).square().flatten(1).mean(dim=1)
    # The range −1..1 has a peak of 2: 2² / MSE
    return 10.0 * (4.0 / error).log10()
