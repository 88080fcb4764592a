"""The tokenizers of thesis Table D.1."""

from typing import Literal, get_args

from pseudovideo.tokenizers.config import Stem, TokenizerConfig

PaperDataSet = Literal["cifar10", "celeba"]
PaperFrames = Literal[1, 8, 18]
_SIZES = {"cifar10": 32, "celeba": 64}


def paper_config(
    data_set: PaperDataSet, num_frames: PaperFrames, *, stem: Stem = "plain"
) -> TokenizerConfig:
    """A column of Table D.1: width 512, 8 heads, K = 1024, patches of 2×4×4 (1×4×4 for images).

    8 layers: 4 spatial and 4 temporal ones, or 8 spatial ones for images; as many again in the
    decoder. The code width of 32 and the plain stem are this package's, see `TokenizerConfig`.

    Args:
        data_set: CIFAR-10 at 32×32 or CelebA at 64×64.
        num_frames: 1, 8 or 18.
        stem: `layernorm` reproduces the usual code.

    Raises:
        ValueError: the table has no such column.
    """
    if data_set not in _SIZES:
        raise ValueError(f"data_set must be one of {', '.join(_SIZES)}, got {data_set!r}")
    if num_frames not in get_args(PaperFrames):
        raise ValueError(f"num_frames must be 1, 8 or 18, got {num_frames!r}")
    image = num_frames == 1
    return TokenizerConfig(
        num_frames=num_frames,
        image_size=_SIZES[data_set],
        temporal_patch=1 if image else 2,
        spatial_depth=8 if image else 4,
        temporal_depth=0 if image else 4,
        stem=stem,
    )
