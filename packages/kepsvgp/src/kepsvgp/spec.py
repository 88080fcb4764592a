"""Settings of kernel-eigen-pair attention, and the paper's sizes (D.1); loads no torch."""

from typing import TYPE_CHECKING, Literal

from kepsvgp.names import BranchesName, InitialPosterior, LayersName, MergeName
from probseq.settings import Count, Index, NotNegative
from probseq.transformers.spec import (
    AttentionConfig,
    BlockContext,
    Preset,
    SoftmaxConfig,
    TransformerConfig,
)

if TYPE_CHECKING:
    from torch import nn


class KEPSVGPConfig(AttentionConfig):
    """Settings of :class:`~kepsvgp.attention.KernelEigenPairAttention` in some blocks.

    Attributes:
        rank: singular functions s of each head.
        layers: blocks that have it: last (the paper), all, or their indices from 0.
            The others have softmax attention.
        merge: how the two processes become one output: addition, concatenation (of a
            longest length), concatenation-low-rank, or auto: concatenation for images,
            addition for texts.
        branches: the two processes er, or one of them twice, ee or rr.
        shared_u: both processes share their inducing variables.
        eta: weight η of the loss of the kernel SVD.
        projection_tokens: tokens p in f(X); None: 10 s, at most the longest sequence.
        initial_posterior: prior or random.
        sample: no-sample gives the posterior's mean, a control that tells what the noise does.
    """

    rank: Count = 10
    layers: LayersName | tuple[Index, ...] = "last"
    merge: MergeName | Literal["auto"] = "auto"
    branches: BranchesName = "er"
    shared_u: bool = True
    eta: NotNegative = 10.0
    projection_tokens: Count | None = None
    initial_posterior: InitialPosterior = "prior"
    sample: bool = True

    def check(self) -> None:
        """Refuse blocks that are named twice or not at all, and ranks above the tokens in f(X)."""
        if isinstance(self.layers, tuple) and not 0 < len(set(self.layers)) == len(self.layers):
            self._refuse_layers("different indices")
        if self.projection_tokens is not None and self.rank > self.projection_tokens:
            raise ValueError(
                f"rank must be at most projection_tokens={self.projection_tokens}, got {self.rank}"
            )

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from kepsvgp.attention import KernelEigenPairAttention

        backbone = context.backbone
        last = backbone.depth - 1
        layers = self.layers
        if not isinstance(layers, tuple):
            layers = (last,) if layers == "last" else range(backbone.depth)
        if max(layers) > last:
            self._refuse_layers(f"indices from 0 to {last}")
        if context.block not in layers:
            return SoftmaxConfig().build(context)
        merge = self.merge
        if merge == "auto":
            merge = "concatenation" if context.fixed_length else "addition"
        return KernelEigenPairAttention(
            backbone.dim,
            backbone.num_heads,
            self.rank,
            merge=merge,
            max_tokens=context.max_tokens,
            branches=self.branches,
            shared_u=self.shared_u,
            eta=self.eta,
            projection_tokens=self.projection_tokens,
            initial_posterior=self.initial_posterior,
            sample=self.sample,
            dropout=backbone.dropout,
        )

    def _refuse_layers(self, wanted: str) -> None:
        raise ValueError(f"layers must be 'last', 'all' or {wanted}, got {self.layers}")


CIFAR10 = Preset(
    TransformerConfig(depth=7, dim=384, num_heads=12, hidden_dim=384),
    KEPSVGPConfig(rank=10, merge="concatenation"),
)
"""D.1, CIFAR-10: images of 32 by 32 pixels in patches of 4 by 4."""

CIFAR100 = CIFAR10
"""D.1, CIFAR-100: the same sizes."""

IMDB = Preset(
    TransformerConfig(depth=1, dim=128, num_heads=8, hidden_dim=128),
    KEPSVGPConfig(rank=10, merge="addition"),
)
"""D.1, sentiment of film reviews: up to 512 tokens."""

COLA = Preset(
    TransformerConfig(depth=2, dim=128, num_heads=4, hidden_dim=256),
    KEPSVGPConfig(rank=5, merge="addition", eta=1.0, projection_tokens=10),
)
"""D.1, linguistic acceptability; the 10 tokens in f(X) are those of the authors' code."""
