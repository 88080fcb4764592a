"""The settings of a tokenizer."""

from dataclasses import dataclass
from typing import Literal, get_args

from pseudovideo.grid import TokenGrid

Stem = Literal["plain", "layernorm"]
STEMS: tuple[Stem, ...] = get_args(Stem)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A VQ-VAE (one frame) or a C-ViViT (several).

    The defaults are those of thesis appendix D.2 for 8 frames of CIFAR-10.

    Attributes:
        num_frames: T; must be a multiple of `temporal_patch`.
        image_size: height and width in pixels; must be a multiple of `patch_size`.
        channels: 1 for grey images, 3 for colour.
        patch_size: side of a patch in pixels.
        temporal_patch: frames of a patch: 2 for videos, 1 for images.
        dim: width of the transformers.
        num_heads: heads of every attention; must divide `dim`.
        spatial_depth: blocks within a slot of time, in the encoder and again in the decoder.
        temporal_depth: blocks across time, likewise; 0 for images.
        codebook_size: K.
        code_dim: width of the codes; patches are projected to it and back.
        stem: `plain` projects the raw patch linearly; `layernorm` normalises it before and after,
            as usual code does, which erases each patch's brightness and contrast.
        causal: whether a slot of time sees only itself and blurrier ones.
        commitment: β of eq. 5.6.
        decay: of the exponential moving averages that are the codebook.
        revive_below: a code chosen less often than this, in moving averages of counts per batch
            as a share of an even use, is dead and takes the place of a random input.
    """

    num_frames: int = 8
    image_size: int = 32
    channels: int = 3
    patch_size: int = 4
    temporal_patch: int = 2
    dim: int = 512
    num_heads: int = 8
    spatial_depth: int = 4
    temporal_depth: int = 4
    codebook_size: int = 1024
    code_dim: int = 32
    stem: Stem = "plain"
    causal: bool = True
    commitment: float = 0.25
    decay: float = 0.99
    revive_below: float = 0.01

    def __post_init__(self) -> None:
        """Refuse what makes no tokenizer.

        Raises:
            ValueError: names the setting.
        """
        counts = (
            "num_frames image_size channels patch_size temporal_patch dim num_heads spatial_depth "
            "codebook_size code_dim"
        )
        for name, least in [*((name, 1) for name in counts.split()), ("temporal_depth", 0)]:
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.num_frames % self.temporal_patch:
            raise ValueError(
                f"num_frames must be a multiple of temporal_patch={self.temporal_patch}, "
                f"got {self.num_frames}"
                + (": an image takes temporal_patch=1" if self.num_frames == 1 else "")
            )
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size must be a multiple of patch_size={self.patch_size}, "
                f"got {self.image_size}"
            )
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads must divide dim={self.dim}, got {self.num_heads}")
        if self.codebook_size < 2:
            raise ValueError(f"codebook_size must be at least 2, got {self.codebook_size}")
        if self.stem not in STEMS:
            raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {self.stem!r}")
        if not self.commitment >= 0.0:
            raise ValueError(f"commitment must be at least 0, got {self.commitment}")
        for name in ("decay", "revive_below"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        side = self.image_size // self.patch_size
        shape = (self.num_frames // self.temporal_patch, side, side)
        return TokenGrid(codebook_size=self.codebook_size, shape=shape)
