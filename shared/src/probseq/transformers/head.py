"""Norm, pooling and linear layer behind the encoder."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.pooling import Pooling
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.spec import TransformerConfig


class PooledHead(nn.Module):
    """Read the outputs off the encoded tokens."""

    def __init__(self, config: TransformerConfig, num_outputs: int, max_tokens: int) -> None:
        super().__init__()
        check_counts(num_outputs=num_outputs)
        self.norm = nn.LayerNorm(config.dim) if config.final_norm else nn.Identity()
        self.pooling = Pooling(config.pooling, config.dim, max_tokens)
        self.linear = nn.Linear(self.pooling.output_dim, num_outputs)

    def forward(
        self,
        x: Float[Tensor, "folded tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None,
        num_samples: int | None,
    ) -> Float[Tensor, "*samples batch outputs"]:
        """Pool and project; unfold the samples if there are any."""
        if mask is not None and num_samples is not None:
            mask = repeat_samples(mask, num_samples)
        outputs = self.linear(self.pooling(self.norm(x), mask))
        return outputs if num_samples is None else outputs.unflatten(0, (num_samples, -1))
