"""The tokenizer of images."""

from pseudovideo.tokenizers.config import TokenizerConfig
from pseudovideo.tokenizers.tokenizer import Tokenizer


class VQVAE(Tokenizer):
    """A transformer VQ-VAE: the one-frame model of thesis section 5.3.

    (b, 1, c, H, W) to tokens (b, 1, H/p, W/p) with spatial blocks only.

    Args:
        config: with one frame, one frame a patch and no temporal blocks.

    Raises:
        ValueError: the settings are those of videos.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        for name, value in (("num_frames", 1), ("temporal_depth", 0)):
            if getattr(config, name) != value:
                raise ValueError(
                    f"{name} must be {value} in a VQVAE, got {getattr(config, name)}: "
                    "videos need a CViViT"
                )
        super().__init__(config)
