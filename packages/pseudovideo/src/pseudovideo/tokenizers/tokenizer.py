"""The tokenizers of images and of videos, VQ-VAE and C-ViViT.

NaN and infinity in a tensor reach the result.
"""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.pretrained import Pretrained
from probseq.transformers.protocol import check_dtype
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
        check_range(videos)
        check_weights(self)
        return self.quantizer.encode(self.encoder(videos.to(self.last_layer.dtype)))

    @torch.no_grad()
    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Return frames of token grids (numbers 0..K−1), clamped to −1..1."""
        check_indices(indices, self.grid)
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


_ROUNDING = 1e-3
_NOISE = 8.0


def check_shape(videos: Tensor, config: TokenizerConfig) -> None:
    """Refuse videos of another kind than a tokenizer was built for; costs no device sync."""
    size = config.image_size
    expected = (config.num_frames, config.channels, size, size)
    if videos.ndim != 5:
        raise ValueError(
            "videos must have 5 dimensions (batch, frames, channels, height, width), got shape "
            f"{tuple(videos.shape)}; images are videos of one frame: images[:, None]"
        )
    if not len(videos):
        raise ValueError(f"videos must not be empty, got shape {tuple(videos.shape)}")
    frames, channels, *sides = videos.shape[1:]
    if channels != config.channels:
        kinds = {1: "grey images", 3: "colour images"}
        raise ValueError(
            f"videos must have channels={config.channels}"
            f"{_in_words(kinds.get(config.channels))}, got {channels}"
            f"{_in_words(kinds.get(channels))}"
        )
    if tuple(videos.shape[1:]) != expected:
        raise ValueError(
            "videos must have (frames, channels, height, width)="
            f"{expected}, got {(frames, channels, *sides)}"
        )
    if not videos.is_floating_point():
        raise ValueError(
            f"videos must be floating point with values in -1..1, got {videos.dtype}: "
            "turn pixels 0..255 into pixels / 127.5 - 1"
        )


def _in_words(kind: str | None) -> str:
    return f" ({kind})" if kind else ""


def check_range(videos: Tensor) -> None:
    """Refuse values that are no pixels; waits for the device once.

    The last frame, the image, must lie in −1..1. The frames before it may leave that range, since
    noise does, but not as far as pixels 0..255 would.
    """
    low, high, image_low, image_high = torch.stack(
        [*videos.aminmax(), *videos[:, -1].aminmax()]
    ).tolist()
    edge = 1.0 + _ROUNDING
    # Written so that NaN, for which every comparison is false, is refused too.
    if not (-edge <= image_low and image_high <= edge):
        raise ValueError(
            "videos must have values in -1..1 in their last frame, the image, "
            f"got {image_low:.4g}..{image_high:.4g}"
        )
    if not (low >= -_NOISE and high <= _NOISE):
        raise ValueError(
            f"videos must have values in -1..1 (noise may leave it, up to {_NOISE:.0f}), "
            f"got {low:.4g}..{high:.4g}"
        )


def check_indices(indices: Tensor, grid: TokenGrid) -> None:
    """Refuse tokens of another grid or codebook; waits for the device once."""
    if indices.ndim != 4 or tuple(indices.shape[1:]) != grid.shape:
        raise ValueError(
            f"indices must have shape (batch, time, height, width)=(b, {grid.shape[0]}, "
            f"{grid.shape[1]}, {grid.shape[2]}), got {tuple(indices.shape)}"
        )
    if indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64, got {indices.dtype}")
    if not indices.numel():
        raise ValueError(f"indices must not be empty, got shape {tuple(indices.shape)}")
    low, high = torch.stack(indices.aminmax()).tolist()
    if low < 0 or high >= grid.codebook_size:
        raise ValueError(
            f"indices must be in 0..{grid.codebook_size - 1} (codebook_size="
            f"{grid.codebook_size}), got {low}..{high}"
        )
