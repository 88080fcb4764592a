"""The position-wise network of a transformer block."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, or gated by one (GEGLU, Shazeer 2020).

    Args:
        dim: width of the tokens.
        gated: GEGLU with two thirds of the hidden width, so that both have about 8·dim² weights;
            rounded up to a multiple of 8, without which half precision misses the tensor cores.
    """

    def __init__(self, dim: int, *, gated: bool = True) -> None:
        super().__init__()
        self.gated = gated
        hidden = 8 * -(-dim // 3) if gated else 4 * dim
        self.inner = nn.Linear(dim, 2 * hidden if gated else hidden)
        self.outer = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """W₂(W₁x · GELU(V₁x)), or W₂ GELU(W₁x)."""
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
