from .averaging import WeightAverage
from .corruptions import pseudo_videos
from .diffusion import DiffusionObjective, ImageDiffusion, VideoDiffusion
from .hvae import HeatHVAE, LearnedEncoderHVAE
from .pretrained import load_pretrained
from .priors import AutoregressivePrior, MaskedPrior
from .spec import (
    AutoregressiveConfig,
    CorruptionSpec,
    DiffusionSpec,
    HVAEConfig,
    HVAESpec,
    ImageDiffusionConfig,
    MaskedConfig,
    ObjectiveConfig,
    PseudoVideoConfig,
    TokenGrid,
    TokenizerConfig,
    TokenizerSpec,
    TransformerSizes,
    UNetConfig,
    UNetSpec,
    VideoDiffusionConfig,
    VideoSpec,
)
from .token_cache import TokenCache, cached_tokens
from .tokenizers import VQVAE, CViViT, build_tokenizer
from .tokenizers.objective import TokenizerObjective

__all__ = [
    "VQVAE",
    "AutoregressiveConfig",
    "AutoregressivePrior",
    "CViViT",
    "CorruptionSpec",
    "DiffusionObjective",
    "DiffusionSpec",
    "HVAEConfig",
    "HVAESpec",
    "HeatHVAE",
    "ImageDiffusion",
    "ImageDiffusionConfig",
    "LearnedEncoderHVAE",
    "MaskedConfig",
    "MaskedPrior",
    "ObjectiveConfig",
    "PseudoVideoConfig",
    "TokenCache",
    "TokenGrid",
    "TokenizerConfig",
    "TokenizerObjective",
    "TokenizerSpec",
    "TransformerSizes",
    "UNetConfig",
    "UNetSpec",
    "VideoDiffusion",
    "VideoDiffusionConfig",
    "VideoSpec",
    "WeightAverage",
    "build_tokenizer",
    "cached_tokens",
    "load_pretrained",
    "pseudo_videos",
]

__version__: str
