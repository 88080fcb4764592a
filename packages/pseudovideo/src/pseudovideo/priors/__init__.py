"""Priors over token grids: autoregressive (VideoGPT) and masked (MaskGIT, Phenaki)."""

from pseudovideo.priors.autoregressive import AutoregressiveConfig, AutoregressivePrior
from pseudovideo.priors.masked import MaskedConfig, MaskedPrior

__all__ = ["AutoregressiveConfig", "AutoregressivePrior", "MaskedConfig", "MaskedPrior"]
