"""The tokenizers of images and of videos, VQ-VAE and C-ViViT.

NaN and infinity in a tensor reach the result.
"""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_integers, check_sizes
from probseq.pretrained import Pretrained
from probseq.transformers.protocol import check_dtype
from pseudovideo.pixels import OF_IMAGES, check_values
from pseudovideo.pretrained import check_weights
from pseudovideo.spec import TokenGrid, TokenizerConfig
from pseudovideo.tokenizers.quantizer import VectorQuantizer
from pseudovideo.tokenizers.transformer import PatchDecoder, PatchEncoder


class TokenizerOutput(NamedTuple):
    """Reconstruction, tokens and terms of a training step."""

    reconstruction: Float[Tensor, "b f c y x"]  # frames, not bounded to −1..1
    indices: Int64[Tensor, "b t h w"]  # tokens
    commitment: Float[Tensor, ""]  # the third term of eq. 5.6, β included
    usage: Float[Tensor, ""]  # share of the codebook that this batch chose
    perplexity: Float[Tensor, ""]  # exp of the entropy of this batch's choices, 1..K


class Tokenizer(Pretrained):
    """Videos to grids of tokens and back (thesis eqs. 5.5 and 5.6).

    `encode`, `decode` and `reconstruct` are for users: they check values and keep no gradients.
    `forward` is for training: it checks shapes alone, since looking at values would make the
    processor wait for the device at every step.
    """

    config_class: ClassVar[type[TokenizerConfig]] = TokenizerConfig
    config: TokenizerConfig

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = PatchEncoder(config)
        self.quantizer = VectorQuantizer(
            config.codebook_size,
            config.code_dim,
            config.dim,
            decay=config.decay,
            commitment=config.commitment,
            revive_below=config.revive_below,
        )
        self.decoder = PatchDecoder(config)

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

        Videos are frames in −1..1, the blurriest first.
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
        """Return tokens of videos with images in −1..1; never change the codebook."""
        check_shape(videos, self.config)
        check_values("the last frame of videos, the image,", videos[:, -1], OF_IMAGES)
        check_values("videos", videos)
        check_weights(self)
        return self.quantizer.encode(self.encoder(videos.to(self.last_layer.dtype)))

    @torch.no_grad()
    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Return frames of token grids (numbers 0..K−1), clamped to −1..1."""
        check_sizes("indices", indices, "b", *self.grid.shape)
        if not len(indices):
            raise ValueError(f"indices must not be empty, got shape {tuple(indices.shape)}")
        check_integers(0, self.grid.codebook_size - 1, indices=indices.cpu())
        check_weights(self)
        return self.decoder(self.quantizer.lookup(indices)).clamp(-1.0, 1.0)

    def reconstruct(self, videos: Float[Tensor, "b f c y x"]) -> Float[Tensor, "b f c y x"]:
        """Return videos through their tokens: `decode(encode(videos))`."""
        return self.decode(self.encode(videos))


class VQVAE(Tokenizer):
    """A transformer VQ-VAE of one frame, with spatial blocks only (thesis section 5.3).

    (b, 1, c, H, W) to tokens (b, 1, H/p, W/p); one frame a patch.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        for name, value in (("num_frames", 1), ("temporal_depth", 0)):
            if getattr(config, name) != value:
                raise ValueError(
                    f"{name} must be {value} in a VQVAE, got {getattr(config, name)}: "
                    "videos need a CViViT"
                )
        super().__init__(config)


class CViViT(Tokenizer):
    """C-ViViT (Villegas et al. 2022) for pseudo videos of even length: thesis section 5.3.

    (b, T, c, H, W) to tokens (b, T/f, H/p, W/p). As in the thesis and unlike Villegas et al., the
    first frame has no stem of its own: all frames come in patches of f×p×p. With causal attention
    the tokens of a slot depend on its frames and blurrier ones alone, and so do its pixels on
    tokens.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        if config.num_frames < 2 or config.num_frames % 2:
            raise ValueError(
                f"num_frames must be even and at least 2 in a CViViT, got {config.num_frames}"
                + (": images need a VQVAE" if config.num_frames == 1 else "")
            )
        if not config.temporal_depth:
            raise ValueError("temporal_depth must be at least 1 in a CViViT, got 0")
        super().__init__(config)


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Return a new tokenizer: `VQVAE` for one frame, `CViViT` for several."""
    return VQVAE(config) if config.num_frames == 1 else CViViT(config)


def check_shape(videos: Tensor, config: TokenizerConfig) -> None:
    """Refuse videos of another kind than a tokenizer was built for; costs no device sync."""
    shape = (config.num_frames, config.channels, config.image_size, config.image_size)
    if videos.shape[1:] != shape or not len(videos) or not videos.is_floating_point():
        raise ValueError(
            f"videos must be floats of shape (batch, frames, channels, height, width)=(b, "
            f"{', '.join(map(str, shape))}), got {videos.dtype} of shape {tuple(videos.shape)}: "
            "images are videos of one frame, images[:, None], and pixels 0..255 are to be "
            "pixels / 127.5 - 1"
        )
