"""Settings of correlated GP attention, and the paper's sizes; importing this loads no torch."""

from typing import TYPE_CHECKING

from cgpt.names import (
    CanonicalPrior,
    ConditionalName,
    InducingName,
    RegulariserName,
    SparseConditional,
    check_exact,
)
from probseq.settings import Count, NotNegative, Positive
from probseq.transformers.names import ATTENTION_JITTER
from probseq.transformers.spec import AttentionConfig, BlockContext, Preset, TransformerConfig

if TYPE_CHECKING:
    from torch import nn


class _CorrelatedConfig(AttentionConfig):
    """Settings of both methods."""

    noise: Positive = 0.1
    regulariser: RegulariserName = "joint"
    canonical_prior: CanonicalPrior = "noise-free"
    sample_in_training: bool = False
    alpha_start: NotNegative = 0.0
    alpha: NotNegative = 1.0

    def penalty_weight(self, progress: float) -> float:
        """Return α (Eq. 28), linear in the share of the training steps that is done.

        The paper's goes from 0 to 1 (section 5.1), in its appendix from 0.5 to 1 or stays at 0.7.
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress must be from 0 to 1, got {progress}")
        return self.alpha_start + (self.alpha - self.alpha_start) * progress


class CGPTConfig(_CorrelatedConfig):
    """Settings of :class:`~cgpt.attention.CorrelatedGPAttention`, O(T³).

    Attributes:
        noise: σ.
        regulariser: log density that is rewarded: joint, exact; marginals, of the
            parts; jensen, a lower bound of these.
        canonical_prior: noise-free or noisy.
        sample_in_training: draw samples in training too.
        alpha_start: weight of the regulariser at the start of training.
        alpha: its weight at the end; it moves linearly.
        conditional: prediction through latent inputs, nystrom (the paper), or without,
            exact.
        nugget: variance added in the regulariser.
        jitter: relative jitter of Cholesky factors; None for machine epsilon.
    """

    conditional: ConditionalName = "nystrom"
    nugget: Positive = 0.01
    jitter: Positive | None = None

    def check(self) -> None:
        """Refuse what needs latent inputs where there are none."""
        if self.conditional == "exact":
            check_exact(self.regulariser, self.canonical_prior)

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from cgpt.attention import CorrelatedGPAttention

        return CorrelatedGPAttention(
            context.backbone.dim,
            context.backbone.num_heads,
            noise=self.noise,
            conditional=self.conditional,
            regulariser=self.regulariser,
            canonical_prior=self.canonical_prior,
            nugget=self.nugget,
            sample_in_training=self.sample_in_training,
            dropout=context.backbone.dropout,
            jitter=self.jitter,
        )


class SCGPTConfig(_CorrelatedConfig):
    """Settings of :class:`~cgpt.sparse_attention.SparseCorrelatedGPAttention`.

    Attributes:
        noise: σ; the paper has 0.1 for images, 0.5 for CoLA.
        regulariser: as of :class:`CGPTConfig`.
        canonical_prior: noise-free or noisy.
        sample_in_training: draw samples in training too.
        alpha_start: weight of the regulariser at the start of training.
        alpha: its weight at the end; it moves linearly.
        num_inducing: inducing inputs m of each head.
        num_key_inducing: second set of inducing inputs; None for as many.
        conditional: sor (the paper) or fitc.
        inducing: inducing inputs: free parameters, or mixed of the tokens, which have a
            longest length.
        jitter: relative jitter of Cholesky factors.
    """

    num_inducing: Count = 16
    num_key_inducing: Count | None = None
    conditional: SparseConditional = "sor"
    inducing: InducingName = "free"
    jitter: Positive = ATTENTION_JITTER

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from cgpt.sparse_attention import SparseCorrelatedGPAttention

        return SparseCorrelatedGPAttention(
            context.backbone.dim,
            context.backbone.num_heads,
            self.num_inducing,
            num_key_inducing=self.num_key_inducing,
            noise=self.noise,
            conditional=self.conditional,
            regulariser=self.regulariser,
            canonical_prior=self.canonical_prior,
            inducing=self.inducing,
            max_tokens=context.max_tokens if self.inducing == "mixed" else None,
            sample_in_training=self.sample_in_training,
            dropout=context.backbone.dropout,
            jitter=self.jitter,
        )


_IMAGES = TransformerConfig(
    depth=5, dim=128, num_heads=4, hidden_dim=128, pooling="sequence", shared_norm=True
)
_TEXTS = TransformerConfig(depth=2, dim=128, num_heads=4, hidden_dim=256, shared_norm=True)

CIFAR10 = Preset(_IMAGES, CGPTConfig())
"""Section 5.1.1, CGPT: images of 32 by 32 pixels in patches of 4 by 4; ours is the noise."""

CIFAR10_SPARSE = Preset(_IMAGES, SCGPTConfig(num_inducing=16))
"""Section 5.1.1, SCGPT."""

COLA = Preset(_TEXTS, CGPTConfig())
"""Section 5.1.2, CGPT; ours is the noise."""

COLA_SPARSE = Preset(_TEXTS, SCGPTConfig(num_inducing=5, noise=0.5))
"""Section 5.1.2, SCGPT; the number of inducing inputs is that of the authors' code."""
