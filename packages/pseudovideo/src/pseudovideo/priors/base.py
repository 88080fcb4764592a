"""What all priors over tokens share: they know their grid, and draw frames with a tokenizer."""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.grid import TokenGrid
from pseudovideo.pretrained import Pretrained, fingerprint


@runtime_checkable
class Decoder(Protocol):
    """What a prior needs of a tokenizer."""

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        ...

    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Frames of token grids."""
        ...


class TokenPrior(Pretrained):
    """A distribution over token grids.

    Args:
        grid: the grid that it is about.
        tokenizer_fingerprint: `fingerprint` of the tokenizer whose tokens it learns; None leaves
            it to K and the shape of the grid whether a tokenizer fits.
    """

    def __init__(self, grid: TokenGrid, tokenizer_fingerprint: str | None) -> None:
        super().__init__()
        self.grid = grid
        self.tokenizer_fingerprint = tokenizer_fingerprint

    @abstractmethod
    def sample_tokens(
        self, n: int, *, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Int64[Tensor, "n t h w"]:
        """Draw token grids; subclasses have further options."""

    def check_tokenizer(self, tokenizer: Decoder) -> None:
        """Refuse a tokenizer whose tokens this prior does not know.

        Args:
            tokenizer: what shall decode.

        Raises:
            ValueError: K, the grid, or the weights differ; the message says what.
        """
        if tokenizer.grid != self.grid:
            raise ValueError(
                f"tokenizer must have codebook_size={self.grid.codebook_size} and a grid "
                f"(time, height, width)={self.grid.shape} as this prior, "
                f"got {tokenizer.grid.codebook_size} and {tokenizer.grid.shape}"
            )
        if self.tokenizer_fingerprint is None or not isinstance(tokenizer, torch.nn.Module):
            return
        found = fingerprint(tokenizer)
        if found != self.tokenizer_fingerprint:
            raise ValueError(
                "tokenizer must be the one whose tokens this prior has learned "
                f"({self.tokenizer_fingerprint}), got one with other weights ({found})"
            )
