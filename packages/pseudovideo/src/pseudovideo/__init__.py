"""Image generation through pseudo videos: an image is the last frame of its own corruptions.

An image becomes a video (`pseudo_videos`), a tokenizer turns videos into grids of tokens (`VQVAE`,
`CViViT`), and a prior learns the grids (`AutoregressivePrior`, `MaskedPrior`) and draws new ones.
Without tokens, `ImageDiffusion` draws images, `VideoDiffusion` pseudo videos frame after frame, and
the HVAEs images through latent frames that are blurred (`HeatHVAE`) or learned
(`LearnedEncoderHVAE`).
"""

from importlib.metadata import version

from pseudovideo.averaging import WeightAverage
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.diffusion import (
    DiffusionObjective,
    ImageDiffusion,
    ImageDiffusionConfig,
    VideoDiffusion,
    VideoDiffusionConfig,
    load_diffusion,
)
from pseudovideo.grid import TokenGrid
from pseudovideo.hvae import HeatHVAE, HVAEConfig, LearnedEncoderHVAE, load_hvae
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.token_cache import TokenCache, write_token_cache
from pseudovideo.tokenizers import (
    VQVAE,
    CViViT,
    PatchKMeans,
    TokenizerConfig,
    build_tokenizer,
    load_tokenizer,
)
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective

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
    "__version__",
    "build_tokenizer",
    "load_diffusion",
    "load_hvae",
    "load_tokenizer",
    "pseudo_videos",
    "write_token_cache",
]

__version__ = version("pseudovideo")
