"""Transformers with correlated GP attention in every block, and the paper's sizes."""

from dataclasses import replace
from typing import Literal

from torch import nn

from cgpt.attention import ConditionalName, CorrelatedGPAttention, check_exact
from cgpt.covariances import CanonicalPrior
from cgpt.regulariser import RegulariserName
from cgpt.sparse import SparseConditional
from cgpt.sparse_attention import InducingName, SparseCorrelatedGPAttention
from probseq.checks import check_choice, check_counts, check_positive
from probseq.transformers import TextTransformer, TransformerConfig, VisionTransformer
from probseq.transformers.prediction import predict_probabilities as predict_probabilities
from probseq.transformers.spec import ATTENTION_JITTER
from probseq.transformers.vision import count_tokens

MethodName = Literal["full", "sparse"]

# What only one of the methods has, with the value that means "not given".
_ONLY_FULL = {"nugget": None}
_ONLY_SPARSE = {"num_inducing": None, "num_key_inducing": None, "inducing": "free"}
_MISSING = "num_inducing must be given with method='sparse', got None"
# Numbers that may be None, with what else they must be.
_OPTIONAL = {
    check_positive: ("nugget", "jitter"),
    check_counts: ("num_inducing", "num_key_inducing"),
}
_CONDITIONALS = {"full": ConditionalName, "sparse": SparseConditional}


class CGPTConfig(TransformerConfig):
    """Settings of a transformer with correlated GP attention.

    Attributes:
        method: ``"full"`` (CGPT, O(T³)) or ``"sparse"`` (SCGPT).
        noise: σ.
        conditional: ``"nystrom"`` or ``"exact"`` of the full method, ``"sor"`` or ``"fitc"`` of the
            sparse one; ``None`` for the first of the two, the paper's.
        regulariser: ``"joint"``, ``"marginals"`` or ``"jensen"``.
        canonical_prior: ``"noise-free"`` or ``"noisy"``.
        nugget: variance added in the regulariser of the full method; ``None`` for its default.
        num_inducing: inducing inputs m of the sparse method, which needs it.
        num_key_inducing: its second set of inducing inputs; ``None`` for as many.
        inducing: its inducing inputs, ``"free"`` or ``"mixed"``.
        sample_in_training: draw samples in training too.
        jitter: relative jitter of Cholesky factors; ``None`` for the method's default.

    See :class:`~cgpt.attention.CorrelatedGPAttention` and
    :class:`~cgpt.sparse_attention.SparseCorrelatedGPAttention` for what these mean.

    Raises:
        ValueError: a setting is unknown, out of range, missing, or means nothing to the others.
    """

    method: MethodName = "full"
    noise: float = 0.1
    conditional: ConditionalName | SparseConditional | None = None
    regulariser: RegulariserName = "joint"
    canonical_prior: CanonicalPrior = "noise-free"
    nugget: float | None = None
    num_inducing: int | None = None
    num_key_inducing: int | None = None
    inducing: InducingName = "free"
    sample_in_training: bool = False
    jitter: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, MethodName)
        if self.conditional is not None:
            check_choice("conditional", self.conditional, _CONDITIONALS[self.method])
        check_choice("regulariser", self.regulariser, RegulariserName)
        check_choice("canonical_prior", self.canonical_prior, CanonicalPrior)
        check_choice("inducing", self.inducing, InducingName)
        check_positive(noise=self.noise)
        for name, absent in (_ONLY_SPARSE if self.method == "full" else _ONLY_FULL).items():
            if (value := getattr(self, name)) != absent:
                raise ValueError(
                    f"{name} means nothing to method={self.method!r} and must be {absent!r}, "
                    f"got {value!r}"
                )
        if self.method == "sparse" and self.num_inducing is None:
            raise ValueError(_MISSING)
        for check, names in _OPTIONAL.items():
            given = {name: getattr(self, name) for name in names}
            check(**{name: value for name, value in given.items() if value is not None})
        if self.conditional == "exact":
            check_exact(self.regulariser, self.canonical_prior)

    def attention(self, max_tokens: int) -> nn.Module:
        """Build the attention module of one block.

        Args:
            max_tokens: longest sequence; only mixed inducing inputs depend on it.

        Raises:
            ValueError: an argument is out of range.
        """
        if self.method == "full":
            return CorrelatedGPAttention(
                self.dim,
                self.num_heads,
                noise=self.noise,
                conditional="exact" if self.conditional == "exact" else "nystrom",
                regulariser=self.regulariser,
                canonical_prior=self.canonical_prior,
                nugget=0.01 if self.nugget is None else self.nugget,
                sample_in_training=self.sample_in_training,
                dropout=self.dropout,
                jitter=self.jitter,
            )
        if self.num_inducing is None:
            raise ValueError(_MISSING)
        return SparseCorrelatedGPAttention(
            self.dim,
            self.num_heads,
            self.num_inducing,
            num_key_inducing=self.num_key_inducing,
            noise=self.noise,
            conditional="fitc" if self.conditional == "fitc" else "sor",
            regulariser=self.regulariser,
            canonical_prior=self.canonical_prior,
            inducing=self.inducing,
            max_tokens=max_tokens if self.inducing == "mixed" else None,
            sample_in_training=self.sample_in_training,
            dropout=self.dropout,
            jitter=ATTENTION_JITTER if self.jitter is None else self.jitter,
        )


CIFAR10 = CGPTConfig(
    depth=5, dim=128, num_heads=4, hidden_dim=128, pooling="sequence", shared_norm=True
)
"""Section 5.1.1, CGPT: images of 32 by 32 pixels in patches of 4 by 4; ours is the noise."""

CIFAR10_SPARSE = replace(CIFAR10, method="sparse", num_inducing=16)
"""Section 5.1.1, SCGPT."""

COLA = CGPTConfig(depth=2, dim=128, num_heads=4, hidden_dim=256, shared_norm=True)
"""Section 5.1.2, CGPT; ours is the noise."""

COLA_SPARSE = replace(COLA, method="sparse", num_inducing=5, noise=0.5)
"""Section 5.1.2, SCGPT; the number of inducing inputs is that of the authors' code."""


def vision_transformer(
    config: CGPTConfig, *, image_size: int, patch_size: int, channels: int, num_classes: int
) -> VisionTransformer:
    """Build a vision transformer with correlated GP attention in every block.

    Args:
        config: settings, for instance :data:`CIFAR10`.
        image_size: height and width of the images, in pixels.
        patch_size: height and width of a patch.
        channels: image channels.
        num_classes: number of classes.

    Raises:
        ValueError: ``patch_size`` does not divide ``image_size``, or a setting is out of range.
    """
    max_tokens = count_tokens(config, image_size=image_size, patch_size=patch_size)
    return VisionTransformer(
        config,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        num_classes=num_classes,
        attention=lambda index: config.attention(max_tokens),
    )


def text_transformer(
    config: CGPTConfig, *, vocab_size: int, max_length: int, num_classes: int
) -> TextTransformer:
    """Build a text transformer with correlated GP attention in every block.

    Args:
        config: settings, for instance :data:`COLA`.
        vocab_size: number of token ids, padding (0) included.
        max_length: longest sequence.
        num_classes: number of classes.

    Raises:
        ValueError: a setting is out of range.
    """
    max_tokens = max_length + (config.pooling == "cls")
    return TextTransformer(
        config,
        vocab_size=vocab_size,
        max_length=max_length,
        num_classes=num_classes,
        attention=lambda index: config.attention(max_tokens),
    )
