"""What a tokenizer makes of a video, and what a prior is about: a grid of token numbers."""

import math
from dataclasses import dataclass

from probseq.checks import check_counts


@dataclass(frozen=True, kw_only=True)
class TokenGrid:
    """A grid of tokens from a codebook.

    Attributes:
        codebook_size: K; tokens are 0..K−1.
        shape: (t, h, w): slots in time, the blurriest first, rows and columns.
    """

    codebook_size: int
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        """Refuse an empty grid.

        Raises:
            ValueError: names the attribute.
        """
        check_counts(codebook_size=self.codebook_size)
        if self.codebook_size < 2:
            raise ValueError(f"codebook_size must be at least 2, got {self.codebook_size}")
        sizes: tuple[object, ...] = self.shape
        if len(sizes) != 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise ValueError(
                "shape of the grid must be (time, height, width), whole numbers of at least 1, got "
                f"{sizes}"
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of one video, t·h·w."""
        return math.prod(self.shape)

    @property
    def bits(self) -> float:
        """Bits of one video, t·h·w·log₂K: what tables must compare at equal values."""
        return self.num_tokens * math.log2(self.codebook_size)
