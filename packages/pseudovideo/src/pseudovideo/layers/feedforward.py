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
        inner = self.inner(x)
        if not self.gated:
            return self.outer(F.gelu(inner))
        value, gate = inner.chunk(2, dim=-1)
        return self.outer(value * F.gelu(gate))
