"""Priors over token grids: autoregressive (VideoGPT) and masked (MaskGIT, Phenaki)."""

from typing import Any

from pseudovideo.priors.autoregressive import AutoregressivePrior
from pseudovideo.priors.masked import MaskedPrior
from pseudovideo.spec import (
    AutoregressiveConfig,
    ClassSpec,
    MaskedConfig,
    PriorName,
    TokenGrid,
    TransformerSizes,
)

__all__ = [
    "AutoregressiveConfig",
    "AutoregressivePrior",
    "MaskedConfig",
    "MaskedPrior",
    "build_token_prior",
]


def build_token_prior(
    kind: PriorName,
    sizes: TransformerSizes,
    grid: TokenGrid,
    *,
    tokenizer_fingerprint: str | None = None,
    classes: ClassSpec | None = None,
) -> AutoregressivePrior | MaskedPrior:
    """Return a new prior over token grids: ImageGPT's and VideoGPT's, or MaskGIT's and Phenaki's.

    Sizes are those of its transformer, the grid is the tokenizer's; for its fingerprint see
    `PriorConfig`.
    """
    values: dict[str, Any] = {
        **{name: getattr(sizes, name) for name in ("dim", "depth", "num_heads")},
        **{"codebook_size": grid.codebook_size, "grid": grid.shape},
        "tokenizer_fingerprint": tokenizer_fingerprint,
        **(classes or ClassSpec()).to_dict(),
    }
    if kind == "autoregressive":
        return AutoregressivePrior(AutoregressiveConfig(**values))
    return MaskedPrior(MaskedConfig(**values))
