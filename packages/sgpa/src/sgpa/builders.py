"""Transformers with SGPA in every block, and the papers' sizes (thesis B.4)."""

from dataclasses import replace
from typing import Literal, get_args

from torch import nn

from probseq.checks import check_choice, check_positive
from probseq.transformers import TextTransformer, TransformerConfig, VisionTransformer
from probseq.transformers.prediction import predict_probabilities as predict_probabilities
from probseq.transformers.spec import ATTENTION_JITTER, KernelName
from probseq.transformers.vision import count_tokens
from sgpa.attention import (
    CovarianceName,
    InitialPosterior,
    KLWeighting,
    SparseGPAttention,
    VariantName,
    check_settings,
)
from sgpa.standard import StandardSparseGPAttention

StandardName = Literal["standard"]


class SGPAConfig(TransformerConfig):
    """Settings of a transformer with SGPA.

    Attributes:
        num_inducing: global inducing inputs M of each head; unused by ``variant="standard"``.
        kernel: ``"rbf"`` or ``"exponential"``.
        variant: ``"orthogonal"``, ``"decoupled"`` or ``"standard"``.
        covariance: ``"diag"`` or ``"full"`` samples.
        kl_weighting: ``"sequence"`` or ``"dataset"``.
        num_data: number of training sequences, for ``kl_weighting="dataset"``.
        initial_posterior: ``"random"`` or ``"prior"``.
        initial_variance: prior variance to start from; ``None`` for the authors'.
        jitter: relative jitter of Cholesky factors.

    See :class:`~sgpa.attention.SparseGPAttention` for what these mean.

    Raises:
        ValueError: a setting is out of range, unknown, or missing.
    """

    num_inducing: int
    kernel: KernelName = "rbf"
    variant: VariantName | StandardName = "orthogonal"
    covariance: CovarianceName = "diag"
    kl_weighting: KLWeighting = "sequence"
    num_data: int | None = None
    initial_posterior: InitialPosterior = "random"
    initial_variance: float | None = None
    jitter: float = ATTENTION_JITTER

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kernel", self.kernel, KernelName)
        if self.variant not in get_args(StandardName):
            check_choice("variant", self.variant, VariantName)
        check_settings(
            self.num_inducing,
            self.covariance,
            self.kl_weighting,
            self.num_data,
            self.initial_posterior,
            self.jitter,
        )
        if self.initial_variance is not None:
            check_positive(initial_variance=self.initial_variance)

    def attention(self, max_tokens: int) -> nn.Module:
        """Build the attention module of one block.

        Args:
            max_tokens: longest sequence; only the standard variant depends on it.

        Raises:
            ValueError: an argument is out of range, or means nothing to the standard variant.
        """
        if self.variant == "standard":
            if self.kl_weighting != "sequence" or self.initial_posterior != "random":
                raise ValueError(
                    "variant='standard' has no global inducing points: kl_weighting must be "
                    "'sequence' and initial_posterior 'random', got "
                    f"{self.kl_weighting!r} and {self.initial_posterior!r}"
                )
            return StandardSparseGPAttention(
                self.dim,
                self.num_heads,
                max_tokens,
                kernel=self.kernel,
                covariance=self.covariance,
                initial_variance=self.initial_variance,
                dropout=self.dropout,
                jitter=self.jitter,
            )
        return SparseGPAttention(
            self.dim,
            self.num_heads,
            self.num_inducing,
            kernel=self.kernel,
            variant=self.variant,
            covariance=self.covariance,
            kl_weighting=self.kl_weighting,
            num_data=self.num_data,
            initial_posterior=self.initial_posterior,
            initial_variance=self.initial_variance,
            dropout=self.dropout,
            jitter=self.jitter,
        )


CIFAR10 = SGPAConfig(
    depth=5,
    dim=128,
    num_heads=4,
    hidden_dim=128,
    num_inducing=32,
    pooling="sequence",
    shared_norm=True,
)
"""Thesis B.4, CIFAR-10 without augmentation: images of 32 by 32 pixels in patches of 4 by 4."""

CIFAR100 = replace(CIFAR10, depth=6, dim=256, hidden_dim=256)
"""Thesis B.4, CIFAR-100, and CIFAR-10 with augmentation."""

IMDB = SGPAConfig(
    depth=1,
    dim=128,
    num_heads=8,
    hidden_dim=128,
    num_inducing=50,
    kernel="exponential",
    shared_norm=True,
)
"""Thesis B.4, sentiment of film reviews: up to 512 tokens."""

COLA = replace(IMDB, depth=2, num_heads=4, hidden_dim=256, num_inducing=5)
"""Thesis B.4, linguistic acceptability."""


def vision_transformer(
    config: SGPAConfig, *, image_size: int, patch_size: int, channels: int, num_classes: int
) -> VisionTransformer:
    """Build a vision transformer with SGPA in every block.

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
    config: SGPAConfig, *, vocab_size: int, max_length: int, num_classes: int
) -> TextTransformer:
    """Build a text transformer with SGPA in every block.

    Args:
        config: settings, for instance :data:`IMDB`.
        vocab_size: number of token ids, padding (0) included.
        max_length: longest sequence.
        num_classes: number of classes; 1 for regression with
            :class:`~sgpa.objective.LaplaceLikelihood`.
    """
    max_tokens = max_length + (config.pooling == "cls")
    return TextTransformer(
        config,
        vocab_size=vocab_size,
        max_length=max_length,
        num_classes=num_classes,
        attention=lambda index: config.attention(max_tokens),
    )
