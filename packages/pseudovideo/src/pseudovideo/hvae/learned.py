"""The standard HVAE: the same decoder, and an encoder that is learned with it.

NaN and infinity in a tensor reach the result.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.diffusion.unet import apply_unet, build_unet
from pseudovideo.hvae.base import HVAE
from pseudovideo.spec import ClassSpec, HVAEConfig


class LearnedEncoderHVAE(HVAE):
    """Encoder q(z_t|x) = N(f_φ(x, t), σ_h²I), f_φ a UNet of the decoder's architecture.

    The prior is N(0, I), and KL(q(z_T|x) ‖ N(0, I)) is part of loss and bound. f_φ is the UNet's
    output itself, which starts at 0: with the image added to it, the copy z_t = x that no chain of
    frames needs would be where training starts.

    The thesis doesn't tell σ_h of this variant; ours is the heat encoder's. Where that is far below
    1, the bound is best served by copies, m_t(x) ≈ x: they make every step cheap, and no mean at
    all would save more than ½‖x‖²/D of the KL at T, whose ½(σ_h² − 1) − log σ_h remains. Draws of
    N(0, I) then are no frames that the decoder has seen. A larger `noise_std` makes copies dear.

    Args:
        config: sizes and settings; `sigma_min` and `sigma_max` have no bearing.
    """

    def __init__(self, config: HVAEConfig) -> None:
        super().__init__(config)
        channels = config.channels
        # Not told the class: it sees the image.
        plain = replace(config, **ClassSpec().to_dict())
        self.encoder = build_unet(plain, in_channels=channels, out_channels=channels)

    def encode(
        self, images: Float[Tensor, "b c h w"], t: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c h w"]:
        """Return f_φ(x, t)."""
        self._check_levels("images", images, t, 0)
        frames = apply_unet(self.encoder, images, t * (1000 / self.config.num_levels))
        return torch.where((t == 0)[:, None, None, None], images, frames)
