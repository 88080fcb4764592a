"""What VQ-VAE and C-ViViT share.

NaN and infinity in a tensor reach the result.
"""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.transformers.protocol import check_dtype
from pseudovideo.grid import TokenGrid
from pseudovideo.pretrained import Pretrained
from pseudovideo.tokenizers.checks import check_indices, check_range, check_shape
from pseudovideo.tokenizers.config import TokenizerConfig
from pseudovideo.tokenizers.quantizer import VectorQuantizer
from pseudovideo.tokenizers.transformer import Decoder, Encoder


class TokenizerOutput(NamedTuple):
    """What a training step needs.

    Attributes:
        reconstruction: frames, not bounded to −1..1.
        indices: tokens.
        commitment: the third term of eq. 5.6, β included.
        usage: share of the codebook that this batch chose.
        perplexity: exp of the entropy of this batch's choices, 1..K.
    """

    reconstruction: Float[Tensor, "b f c y x"]
    indices: Int64[Tensor, "b t h w"]
    commitment: Float[Tensor, ""]
    usage: Float[Tensor, ""]
    perplexity: Float[Tensor, ""]


class Tokenizer(Pretrained):
    """Videos to grids of tokens and back (thesis eqs. 5.5 and 5.6).

    `encode`, `decode` and `reconstruct` are for users: they check values and keep no gradients.
    `forward` is for training: it checks shapes alone, since looking at values would make the
    processor wait for the device at every step.

    Args:
        config: sizes and settings; kept as `config`.
    """

    config_class: ClassVar[type[TokenizerConfig]] = TokenizerConfig
    config: TokenizerConfig

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quantizer = VectorQuantizer(
            config.codebook_size,
            config.code_dim,
            config.dim,
            decay=config.decay,
            commitment=config.commitment,
            revive_below=config.revive_below,
        )
        self.decoder = Decoder(config)

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        return self.config.grid

    @property
    def last_layer(self) -> Tensor:
        """The weights next to the pixels, where the adaptive adversarial weight is measured."""
        return self.decoder.head.weight

    def forward(self, videos: Float[Tensor, "b f c y x"]) -> TokenizerOutput:
        """Reconstruct with straight-through gradients; in train mode the codebook moves.

        Args:
            videos: frames in −1..1, the blurriest first.

        Raises:
            ValueError: number of frames, channels or size differ from `config`, or the dtype from
                the weights'.
        """
        check_shape(videos, self.config)
        check_dtype("videos", videos, self.last_layer, half=True)
        codes = self.quantizer(self.encoder(videos))
        return TokenizerOutput(
            reconstruction=self.decoder(codes.quantized),
            indices=codes.indices,
            commitment=codes.loss,
            usage=codes.usage,
            perplexity=codes.perplexity,
        )

    @torch.no_grad()
    def encode(self, videos: Float[Tensor, "b f c y x"]) -> Int64[Tensor, "b t h w"]:
        """Tokens of videos; never changes the codebook.

        Args:
            videos: frames whose last one, the image, is in −1..1; of any floating-point type.

        Raises:
            ValueError: number of frames, channels, size or values are not what they must be.
        """
        check_shape(videos, self.config)
        check_range(videos)
        return self.quantizer.encode(self.encoder(videos.to(self.last_layer.dtype)))

    @torch.no_grad()
    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Frames of token grids, clamped to −1..1.

        Args:
            indices: tokens, 0..K−1.

        Raises:
            ValueError: the grid or the values are not this tokenizer's.
        """
        check_indices(indices, self.grid)
        return self.decoder(self.quantizer.lookup(indices)).clamp(-1.0, 1.0)

    def reconstruct(self, videos: Float[Tensor, "b f c y x"]) -> Float[Tensor, "b f c y x"]:
        """Videos through their tokens: `decode(encode(videos))`."""
        return self.decode(self.encode(videos))
