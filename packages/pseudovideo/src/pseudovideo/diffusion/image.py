"""Improved DDPM: a diffusion model of images (Nichol & Dhariwal 2021), the variant with one frame.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_floating, check_sizes
from pseudovideo.diffusion.base import FrameDiffusion
from pseudovideo.diffusion.frame_windows import Stage
from pseudovideo.diffusion.likelihood import BitsPerDim, bits_per_dim
from pseudovideo.diffusion.objective import HybridLosses, hybrid_losses
from pseudovideo.diffusion.sampling import Network, conditioned
from pseudovideo.diffusion.unet import apply_unet, build_unet
from pseudovideo.labels import Classes, check_labels, dropped_labels
from pseudovideo.pixels import check_batch
from pseudovideo.pretrained import eval_mode
from pseudovideo.sampling import noise_like
from pseudovideo.spec import ImageDiffusionConfig


class ImageDiffusion(FrameDiffusion):
    """A UNet that tells noise, and how sure it is, from noisy images.

    Raises:
        MissingExtraError: diffusers is not installed.
    """

    config_class = ImageDiffusionConfig
    config: ImageDiffusionConfig

    def __init__(self, config: ImageDiffusionConfig) -> None:
        super().__init__(config, (Stage((), (0,)),))
        self.unet = build_unet(
            config, in_channels=config.channels, out_channels=2 * config.channels
        )

    def forward(
        self,
        x_t: Float[Tensor, "b c h w"],
        times: Float[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """Return noise and places of the variances, each of all channels.

        Times are those of `diffusion.model_times`, steps on the scale of 1,000. Labels are the
        classes, where the model has them; `num_classes` itself says nothing of the class, where the
        model was trained with `label_dropout`.
        """
        check_sizes("x_t", x_t, "b", *self.config.image_shape)
        check_sizes("times", times, len(x_t))
        check_floating(x_t=x_t, times=times)
        check_labels(labels, self.config, len(x_t), none=True)
        return apply_unet(self.unet, x_t, times, labels)

    def stage_network(
        self,
        stage: Stage,
        observed: Float[Tensor, "b k c h w"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Network:
        """Return the model itself, of videos of one frame; nothing is observed."""
        return lambda x, times: self(x[:, 0], times, labels)[:, None]

    def training_losses(
        self,
        images: Float[Tensor, "b c h w"],
        t: Int64[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> HybridLosses:
        """Return L_hybrid of each image at its step (improved DDPM, equation 16).

        Images are in −1..1; in train mode labels are hidden with probability `label_dropout`.
        """
        check_batch("images", images, self.config.image_shape)
        check_sizes("t", t, len(images))
        noise = noise_like(images, generator)
        x_t = self.diffusion.add_noise(images, noise, t)
        tokens = dropped_labels(labels, self, len(images), generator)
        output = self(x_t, self.diffusion.model_times(t), tokens)
        return hybrid_losses(self.diffusion, output, images, x_t, noise, t)

    def bits_per_dim(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> BitsPerDim:
        """Return the bound on −log₂ p(image) in bits per dimension, by S passes in eval mode.

        Of a model of classes it is that on −log₂ p(image | class). See `bits_per_dim` for the rest.
        """
        check_batch("images", images, self.config.image_shape)
        check_labels(labels, self.config, len(images))
        model = conditioned(self, Classes(labels))
        with eval_mode(self):
            return bits_per_dim(
                model, images, self.diffusion, generator=generator, progress=progress
            )
