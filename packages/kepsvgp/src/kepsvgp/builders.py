"""Transformers with kernel-eigen-pair attention, and the paper's sizes (D.1)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import nn

from kepsvgp.attention import (
    InitialPosterior,
    KernelEigenPairAttention,
    check_rank,
    check_settings,
)
from kepsvgp.merging import BranchesName, MergeName
from probseq.checks import check_choice
from probseq.transformers import (
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
)
from probseq.transformers.prediction import predict_probabilities as predict_probabilities
from probseq.transformers.vision import count_tokens

LayersName = Literal["last", "all"]


class KEPSVGPConfig(TransformerConfig):
    """Settings of a transformer with kernel-eigen-pair attention in some of its blocks.

    Attributes:
        rank: singular functions s of each head.
        layers: blocks that have it: ``"last"`` (the paper), ``"all"``, or their indices from 0.
            The others have softmax attention.
        merge: ``"addition"``, ``"concatenation"`` or ``"concatenation-low-rank"``.
        branches: ``"er"``, ``"ee"`` or ``"rr"``.
        shared_u: both processes share their inducing variables.
        eta: weight of the loss of the kernel SVD.
        projection_tokens: tokens p in f(X); ``None``: 10 s, at most the longest sequence.
        initial_posterior: ``"prior"`` or ``"random"``.

    See :class:`~kepsvgp.attention.KernelEigenPairAttention` for what these mean.

    Raises:
        ValueError: a setting is out of range or unknown, or ``layers`` empty, or names a block
            twice or one that is not there.
    """

    rank: int
    layers: LayersName | tuple[int, ...] = "last"
    merge: MergeName = "addition"
    branches: BranchesName = "er"
    shared_u: bool = True
    eta: float = 10.0
    projection_tokens: int | None = None
    initial_posterior: InitialPosterior = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self.merge, self.branches, self.initial_posterior, self.eta)
        check_rank(self.rank, None, self.projection_tokens)
        if isinstance(self.layers, str):
            check_choice("layers", self.layers, LayersName)
            return
        known = set(range(self.depth))
        if not self.layers or len(set(self.layers)) < len(self.layers) or set(self.layers) - known:
            raise ValueError(
                f"layers must be 'last', 'all' or different indices from 0 to {self.depth - 1}, "
                f"got {self.layers}"
            )

    def attention(self, max_tokens: int) -> Callable[[int], nn.Module]:
        """Return what builds the attention module of a block from its index.

        Args:
            max_tokens: longest sequence.

        Raises:
            ValueError: a setting is out of range, such as a rank above ``max_tokens``.
        """
        chosen = self._chosen_layers()

        def build(index: int) -> nn.Module:
            if index not in chosen:
                return SoftmaxAttention(self.dim, self.num_heads, dropout=self.dropout)
            return KernelEigenPairAttention(
                self.dim,
                self.num_heads,
                self.rank,
                merge=self.merge,
                max_tokens=max_tokens,
                branches=self.branches,
                shared_u=self.shared_u,
                eta=self.eta,
                projection_tokens=self.projection_tokens,
                initial_posterior=self.initial_posterior,
                dropout=self.dropout,
            )

        return build

    def _chosen_layers(self) -> frozenset[int]:
        if self.layers == "all":
            return frozenset(range(self.depth))
        if self.layers == "last":
            return frozenset((self.depth - 1,))
        return frozenset(self.layers)


CIFAR10 = KEPSVGPConfig(
    depth=7, dim=384, num_heads=12, hidden_dim=384, rank=10, merge="concatenation"
)
"""D.1, CIFAR-10: images of 32 by 32 pixels in patches of 4 by 4."""

CIFAR100 = CIFAR10
"""D.1, CIFAR-100: the same sizes."""

IMDB = KEPSVGPConfig(depth=1, dim=128, num_heads=8, hidden_dim=128, rank=10)
"""D.1, sentiment of film reviews: up to 512 tokens."""

COLA = replace(IMDB, depth=2, num_heads=4, hidden_dim=256, rank=5, eta=1.0, projection_tokens=10)
"""D.1, linguistic acceptability; the 10 tokens in f(X) are those of the authors' code."""


def vision_transformer(
    config: KEPSVGPConfig, *, image_size: int, patch_size: int, channels: int, num_classes: int
) -> VisionTransformer:
    """Build a vision transformer with kernel-eigen-pair attention.

    Args:
        config: settings, for instance :data:`CIFAR10`.
        image_size: height and width of the images, in pixels.
        patch_size: height and width of a patch.
        channels: image channels.
        num_classes: number of classes.

    Raises:
        ValueError: ``patch_size`` does not divide ``image_size``, or the rank is above the number
            of tokens.
    """
    max_tokens = count_tokens(config, image_size=image_size, patch_size=patch_size)
    return VisionTransformer(
        config,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        num_classes=num_classes,
        attention=config.attention(max_tokens),
    )


def text_transformer(
    config: KEPSVGPConfig, *, vocab_size: int, max_length: int, num_classes: int
) -> TextTransformer:
    """Build a text transformer with kernel-eigen-pair attention.

    Args:
        config: settings, for instance :data:`IMDB`.
        vocab_size: number of token ids, padding (0) included.
        max_length: longest sequence.
        num_classes: number of classes.

    Raises:
        ValueError: the rank is above ``max_length``.
    """
    max_tokens = max_length + (config.pooling == "cls")
    return TextTransformer(
        config,
        vocab_size=vocab_size,
        max_length=max_length,
        num_classes=num_classes,
        attention=config.attention(max_tokens),
    )
