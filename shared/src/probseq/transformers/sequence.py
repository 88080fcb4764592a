"""Transformer over sequences of vectors with a pluggable attention module.

NaN and infinity in a tensor reach the result.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.encoder import AttentionFactory
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.padded import PooledTransformer, real_tokens
from probseq.transformers.protocol import check_dtype
from probseq.transformers.spec import TransformerConfig


class SequenceTransformer(PooledTransformer):
    """Transformer encoder over vectors: contextual embeddings, atoms of a molecule, measurements.

    A linear layer brings the vectors to the token width. Rows of zeros are padding. Sequences may
    be of any length up to ``max_length``. ``positions`` adds a learned vector to each place;
    without it the order means nothing, as of a set. See
    :class:`~probseq.transformers.padded.PooledTransformer` for the other arguments.

    Example:
        >>> import torch
        >>> from probseq.transformers import SoftmaxConfig, TransformerConfig, sequence_transformer
        >>> config = TransformerConfig(depth=2, dim=32, num_heads=4, hidden_dim=64)
        >>> sizes = {"input_dim": 7, "max_length": 10, "num_outputs": 2}
        >>> model = sequence_transformer(config, SoftmaxConfig(), **sizes)
        >>> model(torch.ones(5, 8, 7)).logits.shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        input_dim: int,
        max_length: int,
        num_outputs: int,
        attention: AttentionFactory,
        positions: bool = True,
    ) -> None:
        check_counts(input_dim=input_dim, max_length=max_length)
        super().__init__(
            config,
            embed=nn.Linear(input_dim, config.dim),
            max_length=max_length,
            positions=positions,
            num_outputs=num_outputs,
            attention=attention,
            sizes={
                "input_dim": input_dim,
                "max_length": max_length,
                "num_outputs": num_outputs,
                "positions": positions,
            },
        )
        self.input_dim = input_dim

    def forward(
        self,
        x: Float[Tensor, "batch tokens input_dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Read the outputs off sequences; without a mask, tokens that are all zero are padding."""
        width = self.input_dim
        if x.ndim != 3 or 0 in x.shape or x.shape[1] > self.max_length or x.shape[2] != width:
            raise ValueError(
                f"x must have shape (batch, 1 to {self.max_length}, input_dim={width}), "
                f"got {tuple(x.shape)}"
            )
        check_dtype("x", x, getattr(self.head.linear, "weight", x), half=True)
        mask = real_tokens(mask, (x != 0).any(-1))
        # What stands at padding must not reach the encoder: NaN times a zero weight is NaN.
        tokens = self.embed(x.masked_fill(~mask.unsqueeze(-1), 0.0))
        return self._classified(tokens, mask, generator, num_samples)
