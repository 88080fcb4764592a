"""Settings of SGPA, and the papers' sizes (thesis B.4); importing this module loads no torch."""

from typing import TYPE_CHECKING, Annotated, Literal

from probseq.settings import Bound, Count, Positive, Share
from probseq.transformers.names import ATTENTION_JITTER, KernelName
from probseq.transformers.spec import AttentionConfig, BlockContext, Preset, TransformerConfig
from sgpa.names import CovarianceName, InitialPosterior, KLWeighting, VariantName

if TYPE_CHECKING:
    from torch import nn


Weight = Annotated[float, Bound("above 0 and at most 1", lambda value: 0 < value <= 1)]


class SGPAConfig(AttentionConfig):
    """Settings of :class:`~sgpa.attention.SparseGPAttention`.

    Attributes:
        num_inducing: global inducing inputs M of each head; unused by variant=standard.
        kernel: rbf, exponential, or auto: RBF for images, exponential for texts.
        variant: orthogonal, decoupled or standard (without global inducing
            inputs).
        covariance: diag samples tokens independently, full jointly, inducing shares the
            noise of the inducing inputs between them, at half the cost of diag.
        sample: no-sample gives the posterior's mean, a control that tells what the noise does.
        kl_weighting: global part of the KL: once per sequence (the papers), or once per data set.
        initial_posterior: inducing outputs to start from: random (the authors') or the
            prior's.
        initial_variance: prior variance to start from; None: 1 for RBF, e^-4 for exponential.
        kl_anneal: share of the training in which the KL's weight rises from 0; 0: full from the
            start.
        kl_scale: final weight of the KL; 1 is the ELBO, less tempers it.
        jitter: relative jitter of Cholesky factors.
    """

    num_inducing: Count = 16
    kernel: KernelName | Literal["auto"] = "auto"
    variant: VariantName | Literal["standard"] = "orthogonal"
    covariance: CovarianceName = "diag"
    sample: bool = True
    kl_weighting: KLWeighting = "sequence"
    initial_posterior: InitialPosterior = "random"
    initial_variance: Positive | None = None
    kl_anneal: Share = 0.5
    kl_scale: Weight = 1.0
    jitter: Positive = ATTENTION_JITTER

    def check(self) -> None:
        """Refuse what means nothing to the standard variant."""
        options = (self.kl_weighting, self.initial_posterior, self.sample)
        shared = self.covariance == "inducing"
        if self.variant == "standard" and (options != ("sequence", "random", True) or shared):
            raise ValueError(
                "variant='standard' has no global inducing points and always draws: kl_weighting "
                "must be 'sequence', initial_posterior 'random', sample True, covariance 'diag' or "
                f"'full', got {(*options, self.covariance)}"
            )

    def penalty_weight(self, progress: float) -> float:
        """Return the weight of the KL divergence (thesis Eq. 3.18), by the share of steps done.

        At the authors' initialisation the KL of one CIFAR-10 layer is about 5e4 nats against a
        cross-entropy of 2.3: unannealed, the layers fall back to their prior before they learn
        anything.
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress must be from 0 to 1, got {progress}")
        return self.kl_scale * (1.0 if progress >= self.kl_anneal else progress / self.kl_anneal)

    def build(self, context: BlockContext) -> "nn.Module":
        """Build the attention module of one block."""
        from sgpa.attention import SparseGPAttention
        from sgpa.standard import StandardSparseGPAttention

        backbone = context.backbone
        kernel = context.kernel if self.kernel == "auto" else self.kernel
        variance = self.initial_variance
        variance = context.initial_variance if variance is None else variance
        if self.variant == "standard":
            return StandardSparseGPAttention(
                backbone.dim,
                backbone.num_heads,
                context.max_tokens,
                kernel=kernel,
                covariance="full" if self.covariance == "full" else "diag",
                initial_variance=variance,
                dropout=backbone.dropout,
                jitter=self.jitter,
            )
        return SparseGPAttention(
            backbone.dim,
            backbone.num_heads,
            self.num_inducing,
            kernel=kernel,
            variant=self.variant,
            covariance=self.covariance,
            sample=self.sample,
            kl_weighting=self.kl_weighting,
            num_data=context.num_data if self.kl_weighting == "dataset" else None,
            initial_posterior=self.initial_posterior,
            initial_variance=variance,
            dropout=backbone.dropout,
            jitter=self.jitter,
        )


CIFAR10 = Preset(
    TransformerConfig(
        depth=5, dim=128, num_heads=4, hidden_dim=128, pooling="sequence", shared_norm=True
    ),
    SGPAConfig(num_inducing=32, kernel="rbf"),
)
"""Thesis B.4, CIFAR-10 without augmentation: images of 32 by 32 pixels in patches of 4 by 4."""

CIFAR100 = Preset(
    TransformerConfig(
        depth=6, dim=256, num_heads=4, hidden_dim=256, pooling="sequence", shared_norm=True
    ),
    SGPAConfig(num_inducing=32, kernel="rbf"),
)
"""Thesis B.4, CIFAR-100, and CIFAR-10 with augmentation."""

IMDB = Preset(
    TransformerConfig(depth=1, dim=128, num_heads=8, hidden_dim=128, shared_norm=True),
    SGPAConfig(num_inducing=50, kernel="exponential"),
)
"""Thesis B.4, sentiment of film reviews: up to 512 tokens."""

COLA = Preset(
    TransformerConfig(depth=2, dim=128, num_heads=4, hidden_dim=256, shared_norm=True),
    SGPAConfig(num_inducing=5, kernel="exponential"),
)
"""Thesis B.4, linguistic acceptability."""
