"""Videos to tokens and back: VQ-VAE for images, C-ViViT for pseudo videos."""

from pseudovideo.spec import ObjectiveConfig, Stem, TokenizerConfig
from pseudovideo.tokenizers.discriminator import Discriminator
from pseudovideo.tokenizers.objective import TokenizerObjective
from pseudovideo.tokenizers.perceptual import PerceptualLoss
from pseudovideo.tokenizers.quantizer import QuantizerOutput, VectorQuantizer
from pseudovideo.tokenizers.tokenizer import (
    VQVAE,
    CViViT,
    Tokenizer,
    TokenizerOutput,
    build_tokenizer,
)

__all__ = [
    "VQVAE",
    "CViViT",
    "Discriminator",
    "ObjectiveConfig",
    "PerceptualLoss",
    "QuantizerOutput",
    "Stem",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerObjective",
    "TokenizerOutput",
    "VectorQuantizer",
    "build_tokenizer",
]
