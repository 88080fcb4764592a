"""Settings of transformers: of the backbone, and the seam for those of attention modules.

Importing this module loads no torch.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from probseq.settings import Count, Rate, Settings

if TYPE_CHECKING:
    from torch import nn

KernelName = Literal["rbf", "exponential"]
PoolingName = Literal["mean", "sequence", "cls"]
NormPlacement = Literal["pre", "post"]

ATTENTION_JITTER = 1e-6
"""Relative jitter of the covariances that attention factorises, in float32 and in float64.

One number for both: it is a part of the model, whose predictions must not depend on the dtype.
float32 cannot do with less.
"""


class TransformerConfig(Settings):
    """Settings of the backbone; the attention modules have their own.

    Attributes:
        depth: number of blocks L.
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        hidden_dim: width of the MLP between attention layers.
        dropout: rate after embeddings, attention and in the MLP.
        pooling: how tokens become one vector, see :class:`~probseq.transformers.pooling.Pooling`.
        norm: layer norm before each sub-layer (``"pre"``) or after each residual sum (``"post"``).
        shared_norm: one LayerNorm for all blocks (SGPA's code) instead of two a block.
        final_norm: a LayerNorm before pooling.

    Raises:
        ValueError: a number is out of range, ``num_heads`` does not divide ``dim``, or a name is
            unknown.
    """

    depth: Count
    dim: Count
    num_heads: Count
    hidden_dim: Count
    dropout: Rate = 0.1
    pooling: PoolingName = "mean"
    norm: NormPlacement = "pre"
    shared_norm: bool = False
    final_norm: bool = True

    def check(self) -> None:
        """Refuse heads that do not divide the width."""
        if self.dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide dim={self.dim}, got num_heads={self.num_heads}"
            )


class Place(NamedTuple):
    """Where in a transformer an attention module stands.

    Attributes:
        backbone: settings of the transformer.
        block: index of its block, from 0.
        max_tokens: longest sequence, a class token included.
    """

    backbone: TransformerConfig
    block: int
    max_tokens: int


class AttentionConfig(Settings, ABC):
    """Base of the settings of attention modules; a subclass knows how to build its module."""

    @abstractmethod
    def build(self, place: Place) -> "nn.Module":
        """Build the attention module of one block.

        Raises:
            ValueError: the settings do not fit the backbone.
        """


class Preset(NamedTuple):
    """Settings of a transformer, as ``vision_transformer`` and its like take them.

    Attributes:
        backbone: of the backbone.
        attention: of the attention modules.
    """

    backbone: TransformerConfig
    attention: AttentionConfig
