"""Settings of transformers: of the backbone, and the seam for those of attention modules.

Importing this module loads no torch.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from probseq.settings import Count, NotNegative, Positive, Rate, Settings
from probseq.transformers.names import KernelName, NormPlacement, PoolingName

if TYPE_CHECKING:
    from torch import nn


class TransformerConfig(Settings):
    """Settings of the backbone; the attention modules have their own.

    Attributes:
        depth: number of blocks L.
        dim: token width.
        num_heads: heads H; must divide dim.
        hidden_dim: width of the MLP between attention layers.
        dropout: rate after embeddings, attention and in the MLP.
        pooling: how tokens become one vector: their mean, a learned weighting (sequence), a
            class token (cls), or all side by side (flatten).
        norm: layer norm before each sub-layer (pre) or after each residual sum (post).
        shared_norm: one LayerNorm for all blocks (SGPA's code) instead of two a block.
        final_norm: a LayerNorm before pooling.
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


class BlockContext(NamedTuple):
    """Index, sizes and data of the block that attention is built for."""

    backbone: TransformerConfig  # settings of the transformer
    block: int  # index of its block, from 0
    max_tokens: int  # longest sequence, a class token included
    fixed_length: bool = False  # whether every sequence has max_tokens tokens, as images have
    kernel: KernelName = "rbf"  # what kernel=auto stands for
    initial_variance: float | None = None  # of the kernel, where its settings leave it open
    num_data: int | None = None  # number of training sequences


class AttentionConfig(Settings, ABC):
    """Base of the settings of attention modules; a subclass knows how to build its module."""

    penalised: ClassVar[bool] = True
    """Whether the loss has a penalty beside the negative log likelihood."""

    @abstractmethod
    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""

    def penalty_weight(self, progress: float) -> float:
        """Return the weight of the penalty in the loss after a share of the training steps."""
        return 1.0


class SoftmaxConfig(AttentionConfig):
    """Settings of softmax attention.

    Attributes:
        num_keys: learned keys of each head between the tokens; None: they attend to each other.
    """

    penalised = False
    num_keys: Count | None = None

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from probseq.transformers.attention import SoftmaxAttention

        backbone = context.backbone
        sizes = backbone.dim, backbone.num_heads, self.num_keys
        return SoftmaxAttention(*sizes, dropout=backbone.dropout)


class KernelConfig(AttentionConfig):
    """Settings of kernel attention.

    Attributes:
        kernel: rbf, exponential, or auto: RBF for images, exponential for texts.
        symmetric: queries and keys share their projection.
        initial_variance: kernel variance to start from; None: 1 for RBF, e^-4 for exponential.
        noise: standard deviation of Gaussian noise on the heads' outputs, in prediction too.
    """

    penalised = False
    kernel: KernelName | Literal["auto"] = "auto"
    symmetric: bool = True
    initial_variance: Positive | None = None
    noise: NotNegative = 0.0

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from probseq.transformers.attention import KernelAttention

        backbone, variance = context.backbone, self.initial_variance
        return KernelAttention(
            backbone.dim,
            backbone.num_heads,
            kernel=context.kernel if self.kernel == "auto" else self.kernel,
            symmetric=self.symmetric,
            initial_variance=context.initial_variance if variance is None else variance,
            noise=self.noise,
            dropout=backbone.dropout,
        )


class Preset(NamedTuple):
    """Settings of a transformer, as ``vision_transformer`` and its like take them."""

    backbone: TransformerConfig  # of the backbone
    attention: AttentionConfig  # of the attention modules
