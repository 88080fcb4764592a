"""A pre-norm transformer block."""

from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.layers.attention import Attention
from pseudovideo.layers.feedforward import FeedForward


class Block(nn.Module):
    """x ← x + Attention(LN(x)); x ← x + FeedForward(LN(x)).

    Args:
        dim: width of the tokens.
        num_heads: heads of the attention.
        normalize: normalised queries and keys, see `Attention`.
        gated: GEGLU, see `FeedForward`.
    """

    def __init__(
        self, dim: int, num_heads: int, *, normalize: bool = False, gated: bool = True
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads, normalize=normalize)
        self.norm_feedforward = nn.LayerNorm(dim)
        self.feedforward = FeedForward(dim, gated=gated)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Map tokens to tokens.

        Args:
            x: tokens.
            causal: let token i see tokens 0..i only.
        """
        x = x + self.attention(self.norm_attention(x), causal=causal)
        return x + self.feedforward(self.norm_feedforward(x))
