"""The tokenizer of videos."""

from pseudovideo.tokenizers.config import TokenizerConfig
from pseudovideo.tokenizers.tokenizer import Tokenizer


class CViViT(Tokenizer):
    """C-ViViT (Villegas et al. 2022) for pseudo videos: thesis section 5.3.

    (b, T, c, H, W) to tokens (b, T/f, H/p, W/p). As in the thesis and unlike Villegas et al., the
    first frame has no stem of its own: all frames come in patches of f×p×p. With causal attention
    the tokens of a slot depend on its frames and blurrier ones alone, and so do its pixels on
    tokens.

    Args:
        config: with at least one patch of two frames or more, and temporal blocks.

    Raises:
        ValueError: the settings are those of images.
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
