"""Priors over token grids: autoregressive (VideoGPT) and masked (MaskGIT, Phenaki)."""

from pseudovideo.priors.autoregressive import AutoregressivePrior
from pseudovideo.priors.masked import MaskedPrior
from pseudovideo.spec import AutoregressiveConfig, MaskedConfig

__all__ = ["AutoregressiveConfig", "AutoregressivePrior", "MaskedConfig", "MaskedPrior"]
