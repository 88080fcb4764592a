"""Videos to tokens and back: VQ-VAE for images, C-ViViT for pseudo videos."""

from pseudovideo.tokenizers.build import build_tokenizer, load_tokenizer
from pseudovideo.tokenizers.config import STEMS, Stem, TokenizerConfig
from pseudovideo.tokenizers.cvivit import CViViT
from pseudovideo.tokenizers.discriminator import Discriminator
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective
from pseudovideo.tokenizers.patch_kmeans import PatchKMeans
from pseudovideo.tokenizers.perceptual import PerceptualLoss
from pseudovideo.tokenizers.presets import paper_config
from pseudovideo.tokenizers.quantizer import QuantizerOutput, VectorQuantizer
from pseudovideo.tokenizers.tokenizer import Tokenizer, TokenizerOutput
from pseudovideo.tokenizers.vqvae import VQVAE

__all__ = [
    "STEMS",
    "VQVAE",
    "CViViT",
    "Discriminator",
    "ObjectiveConfig",
    "PatchKMeans",
    "PerceptualLoss",
    "QuantizerOutput",
    "Stem",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerObjective",
    "TokenizerOutput",
    "VectorQuantizer",
    "build_tokenizer",
    "load_tokenizer",
    "paper_config",
]
