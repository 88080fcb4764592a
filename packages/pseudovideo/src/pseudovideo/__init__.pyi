from .averaging import WeightAverage
from .corruptions import PseudoVideoConfig, pseudo_videos
from .diffusion import (
    DiffusionObjective,
    ImageDiffusion,
    ImageDiffusionConfig,
    VideoDiffusion,
    VideoDiffusionConfig,
    load_diffusion,
)
from .grid import TokenGrid
from .hvae import HeatHVAE, HVAEConfig, LearnedEncoderHVAE, load_hvae
from .priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig, MaskedPrior
from .token_cache import TokenCache, write_token_cache
from .tokenizers import VQVAE, CViViT, PatchKMeans, TokenizerConfig, build_tokenizer, load_tokenizer
from .tokenizers.objective import ObjectiveConfig, TokenizerObjective

__all__ = [
    "VQVAE",
    "AutoregressiveConfig",
    "AutoregressivePrior",
    "CViViT",
    "DiffusionObjective",
    "HVAEConfig",
    "HeatHVAE",
    "ImageDiffusion",
    "ImageDiffusionConfig",
    "LearnedEncoderHVAE",
    "MaskedConfig",
    "MaskedPrior",
    "ObjectiveConfig",
    "PatchKMeans",
    "PseudoVideoConfig",
    "TokenCache",
    "TokenGrid",
    "TokenizerConfig",
    "TokenizerObjective",
    "VideoDiffusion",
    "VideoDiffusionConfig",
    "WeightAverage",
    "build_tokenizer",
    "load_diffusion",
    "load_hvae",
    "load_tokenizer",
    "pseudo_videos",
    "write_token_cache",
]

__version__: str
