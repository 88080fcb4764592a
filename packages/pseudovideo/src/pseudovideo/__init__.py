"""Image generation through pseudo videos: an image is the last frame of its own corruptions.

An image becomes a video (`pseudo_videos`), a tokenizer turns videos into grids of tokens (`VQVAE`,
`CViViT`), and a prior learns the grids (`AutoregressivePrior`, `MaskedPrior`) and draws new ones.
Without tokens, `ImageDiffusion` draws images, `VideoDiffusion` pseudo videos frame after frame, and
the HVAEs images through latent frames that are blurred (`HeatHVAE`) or learned
(`LearnedEncoderHVAE`).

Bad arguments raise a `ValueError` that names them.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("pseudovideo")
