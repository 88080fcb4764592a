"""Text transformer with a pluggable attention module."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.encoder import AttentionFactory
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.padded import PooledTransformer, real_tokens
from probseq.transformers.spec import TransformerConfig

PADDING = 0


class TextTransformer(PooledTransformer):
    """Transformer encoder over token ids, with learned token and position embeddings.

    Id 0 is padding, and counts in ``vocab_size``. Sequences may be of any length up to
    ``max_length``. See :class:`~probseq.transformers.padded.PooledTransformer` for the arguments.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        max_length: int,
        num_classes: int,
        attention: AttentionFactory,
    ) -> None:
        check_counts(vocab_size=vocab_size, max_length=max_length, num_classes=num_classes)
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2, padding included, got {vocab_size}")
        super().__init__(
            config,
            embed=nn.Embedding(vocab_size, config.dim, padding_idx=PADDING),
            max_length=max_length,
            positions=True,
            num_outputs=num_classes,
            attention=attention,
            sizes={
                "vocab_size": vocab_size,
                "max_length": max_length,
                "num_classes": num_classes,
            },
        )
        self.vocab_size = vocab_size

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Classify sequences; without a mask, tokens that are 0 are padding."""
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.shape[1] > self.max_length:
            raise ValueError(
                f"tokens must have shape (batch, 1 to {self.max_length}), got {tuple(tokens.shape)}"
            )
        if tokens.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"tokens must be whole numbers (int64), got {tokens.dtype}")
        if not torch.compiler.is_compiling():  # looks at values
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.vocab_size:
                raise ValueError(
                    f"tokens must be from 0 to {self.vocab_size - 1}, got {low} to {high}"
                )
        mask = real_tokens(mask, tokens != PADDING)
        return self._classified(self.embed(tokens), mask, generator, num_samples)
