"""A pre-norm transformer block.

NaN and infinity in a tensor reach the result.
"""

from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_sizes
from probseq.transformers.protocol import check_dtype
from pseudovideo.layers.attention import Attention
from pseudovideo.layers.feedforward import FeedForward


class Block(nn.Module):
    """x ← x + Attention(LN(x)); x ← x + FeedForward(LN(x)).

    Args:
        dim: width of the tokens.
        num_heads: heads of the attention.
        normalize: normalised queries and keys, see `Attention`.
        gated: GEGLU, see `FeedForward`.

    Raises:
        ValueError: as of `Attention`.
    """

    def __init__(
        self, dim: int, num_heads: int, *, normalize: bool = False, gated: bool = True
    ) -> None:
        super().__init__()
        check_counts(dim=dim, num_heads=num_heads)
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads, normalize=normalize)
        self.norm_feedforward = nn.LayerNorm(dim)
        self.feedforward = FeedForward(dim, gated=gated)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Map tokens to tokens; see `Attention.forward`."""
        weight = self.norm_attention.weight
        check_sizes("x", x, "b", "n", len(weight))
        check_dtype("x", x, weight, half=True)
        x = x + self.attention(self.norm_attention(x), causal=causal)
        return x + self.feedforward(self.norm_feedforward(x))
