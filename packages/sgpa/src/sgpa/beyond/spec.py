"""Settings of softmax attention with a deviation; importing this module loads no torch."""

from typing import TYPE_CHECKING

from probseq.settings import Count, Positive
from probseq.transformers.names import ATTENTION_JITTER
from probseq.transformers.spec import AttentionConfig, BlockContext
from sgpa.spec import Weight

if TYPE_CHECKING:
    from torch import nn


class ResidualSGPAConfig(AttentionConfig):
    """Settings of :class:`~sgpa.beyond.residual.ResidualSparseGPAttention`.

    Attributes:
        num_inducing: inducing inputs M of each head.
        initial_variance: prior variance σ² of the deviation to start from; None: a hundredth of the
            variance of softmax attention's output.
        rho: standard deviation of the whitened inducing outputs to start from; 1 is the prior's.
        kl_scale: weight of the KL, which all training examples pay together; 1 is the ELBO.
        jitter: relative jitter of Cholesky factors.
    """

    num_inducing: Count = 16
    initial_variance: Positive | None = None
    rho: Positive = 1.0
    kl_scale: Weight = 1.0
    jitter: Positive = ATTENTION_JITTER

    def penalty_weight(self, progress: float) -> float:
        """Return the weight of the KL divergence."""
        return self.kl_scale

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from sgpa.beyond.residual import ResidualSparseGPAttention

        return ResidualSparseGPAttention(
            context.backbone.dim,
            context.backbone.num_heads,
            self.num_inducing,
            initial_variance=self.initial_variance,
            rho=self.rho,
            num_data=context.num_data,
            dropout=context.backbone.dropout,
            jitter=self.jitter,
        )
