"""The position-wise network of a transformer block.

NaN and infinity in a tensor reach the result.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.protocol import check_dtype


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, or gated by one (GEGLU, Shazeer 2020).

    Args:
        dim: width of the tokens.
        gated: GEGLU with two thirds of the hidden width, so that both have about 8·dim² weights;
            rounded up to a multiple of 8, without which half precision misses the tensor cores.

    Raises:
        ValueError: `dim` is no whole number of at least 1.
    """

    def __init__(self, dim: int, *, gated: bool = True) -> None:
        super().__init__()
        check_counts(dim=dim)
        self.gated = gated
        hidden = 8 * -(-dim // 3) if gated else 4 * dim
        self.inner = nn.Linear(dim, 2 * hidden if gated else hidden)
        self.outer = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return W₂(W₁x · GELU(V₁x)), or W₂ GELU(W₁x).

        Raises:
            ValueError: tokens of another width or dtype than the weights'.
        """
        weight = self.inner.weight
        if x.shape[-1:] != weight.shape[1:]:
            raise ValueError(f"x must have shape (..., {weight.shape[1]}), got {tuple(x.shape)}")
        check_dtype("x", x, weight, half=True)
        if not self.gated:
            return self.outer(F.gelu(self.inner(x)))
        # Two products: halves of one result are strided, where GELU takes several times as long on
        # a CPU, and their gradients would have to be put together again.
        value, gate = (
            F.linear(x, weight, bias)
            for weight, bias in zip(
                self.inner.weight.chunk(2), self.inner.bias.chunk(2), strict=True
            )
        )
        return self.outer(value * F.gelu(gate))
