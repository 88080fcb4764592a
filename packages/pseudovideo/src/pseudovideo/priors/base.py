"""The base of priors over tokens: they know their grid, and draw frames with a tokenizer."""

from abc import abstractmethod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.pretrained import Pretrained, fingerprint
from pseudovideo.labels import sample_classes
from pseudovideo.sampling import sample_batches
from pseudovideo.spec import PriorConfig, TokenGrid
from pseudovideo.token_cache import TokenCache
from pseudovideo.tokenizers.tokenizer import Tokenizer


class AxisPositions(nn.Module):
    """A learned vector per slot of time, one per row and one per column; a token has their sum."""

    def __init__(self, shape: tuple[int, int, int], dim: int) -> None:
        super().__init__()
        time, rows, columns = (0.02 * torch.randn(length, dim) for length in shape)
        self.time = nn.Parameter(time)
        self.rows = nn.Parameter(rows)
        self.columns = nn.Parameter(columns)

    def forward(self) -> Float[Tensor, "n d"]:
        """Return the positions of all tokens in raster order."""
        return (self.time[:, None, None] + self.rows[:, None] + self.columns).flatten(0, 2)


class TokenPrior(Pretrained):
    """A distribution over token grids."""

    def __init__(self, config: PriorConfig) -> None:
        super().__init__()
        self.config = config
        self.grid = config.token_grid
        self.tokenizer_fingerprint = config.tokenizer_fingerprint

    @abstractmethod
    def sample_tokens(
        self,
        n: int,
        *,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int64[Tensor, "n t h w"]:
        """Draw token grids; subclasses have further options.

        Args:
            n: number of grids.
            labels: class of each grid, where the prior has classes; None draws them
                (`draw_labels`).
            guidance: g of l = l_u + g (l_c − l_u) of the logits with the class and without it. 1 is
                the prior of the class and 0 leaves it out; other values than these two take twice
                the passes, each step's in one batch.
            temperature: divides the logits; 0 takes the most likely token each time.
            generator: of the draws, on the prior's device; torch's global one if not given.
        """

    @abstractmethod
    def loss(
        self,
        tokens: Integer[Tensor, "b t h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean of −log p of the tokens that are predicted, in nats per token.

        Tokens are of any integer type; in train mode labels are hidden with probability
        `label_dropout`. The generator, torch's global one if not given, draws which labels are
        hidden, and masks.
        """

    def sample(
        self,
        n: int,
        tokenizer: Tokenizer,
        *,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        generator: torch.Generator | None = None,
        batch_size: int = 256,
        **options: Any,
    ) -> Float[Tensor, "n f c y x"]:
        """Draw token grids and decode them, batch by batch, to frames; the last is the image.

        Arguments and options are those of `sample_tokens`; the tokenizer is on the prior's device.
        Another `batch_size` is another draw.
        """
        check_counts(n=n, batch_size=batch_size)
        self.check_tokenizer(tokenizer)
        device = next(self.parameters()).device
        options |= {"guidance": guidance, "generator": generator}
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=device
        )

        def draw(numbers: Tensor) -> Tensor:
            tokens = self.sample_tokens(
                len(numbers), labels=classes.select(numbers).labels, **options
            )
            return tokenizer.decode(tokens)

        with torch.no_grad():
            return sample_batches(draw, n, batch_size, device)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer whose tokens this prior does not know."""
        hashed = None if self.tokenizer_fingerprint is None else fingerprint(tokenizer)
        self._check("tokenizer", tokenizer.grid, hashed)

    def check_cache(self, cache: TokenCache) -> None:
        """Refuse tokens of another grid or from another tokenizer than this prior's."""
        self._check("cache", cache.grid, cache.tokenizer_fingerprint)

    def _check(self, name: str, grid: TokenGrid, hashed: str | None) -> None:
        if grid != self.grid:
            raise ValueError(
                f"{name} must have codebook_size={self.grid.codebook_size} and a grid "
                f"(time, height, width)={self.grid.shape} as this prior, "
                f"got {grid.codebook_size} and {grid.shape}"
            )
        if (
            None not in (self.tokenizer_fingerprint, hashed)
            and hashed != self.tokenizer_fingerprint
        ):
            raise ValueError(
                f"{name} must be of the tokenizer whose tokens this prior learns "
                f"({self.tokenizer_fingerprint}), got one with other weights ({hashed})"
            )

    def _sequences(self, tokens: Integer[Tensor, "b t h w"]) -> Int64[Tensor, "b n"]:
        """Return token grids in raster order, the blurriest slot first."""
        dtype = tokens.dtype
        whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        if not whole or tokens.shape[1:] != self.grid.shape or not len(tokens):
            raise ValueError(
                f"tokens must be integers of shape (batch, {', '.join(map(str, self.grid.shape))})"
                f", got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        if tokens.device.type == "cpu":
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.grid.codebook_size:
                raise ValueError(
                    f"tokens must lie in 0..{self.grid.codebook_size - 1}, got {low}..{high}"
                )
        return rearrange(tokens.long(), "b t h w -> b (t h w)")
