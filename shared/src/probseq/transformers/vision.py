"""Vision transformer with a pluggable attention module.

NaN and infinity in a tensor reach the result.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.encoder import AttentionFactory
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.padded import PooledTransformer
from probseq.transformers.protocol import check_dtype
from probseq.transformers.spec import TransformerConfig


class VisionTransformer(PooledTransformer):
    """Vision transformer (Dosovitskiy et al. 2021).

    Images are square, of ``image_size`` pixels, which ``patch_size`` must divide. See
    :class:`~probseq.transformers.padded.PooledTransformer` for the other arguments.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        image_size: int,
        patch_size: int,
        channels: int,
        num_classes: int,
        attention: AttentionFactory,
    ) -> None:
        count_tokens(config, image_size=image_size, patch_size=patch_size)  # checks the sizes
        check_counts(channels=channels, num_classes=num_classes)
        super().__init__(
            config,
            embed=nn.Conv2d(channels, config.dim, patch_size, stride=patch_size),
            max_length=(image_size // patch_size) ** 2,
            positions=True,
            num_outputs=num_classes,
            attention=attention,
            sizes={
                "image_size": image_size,
                "patch_size": patch_size,
                "channels": channels,
                "num_classes": num_classes,
            },
        )
        self.image_size, self.channels = image_size, channels

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Classify normalised images; S samples run as one batch."""
        expected = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected or images.shape[0] == 0:
            raise ValueError(
                "images must have shape (batch, channels, height, width)="
                f"(>=1, {', '.join(map(str, expected))}), got {tuple(images.shape)}"
            )
        check_dtype("images", images, getattr(self.embed, "weight", images), half=True)
        x = rearrange(self.embed(images), "b d h w -> b (h w) d")
        return self._classified(x, None, generator, num_samples)


def count_tokens(config: TransformerConfig, *, image_size: int, patch_size: int) -> int:
    """Return the number of tokens of an image: its patches, and the class token if there is one."""
    check_counts(image_size=image_size, patch_size=patch_size)
    if image_size % patch_size:
        raise ValueError(
            f"patch_size must divide image_size={image_size}, got patch_size={patch_size}"
        )
    return (image_size // patch_size) ** 2 + (config.pooling == "cls")
