"""A pre-norm transformer block: multi-head self-attention and a position-wise network.

NaN and infinity in a tensor reach the result.
"""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_sizes
from probseq.transformers.protocol import check_dtype


class Attention(nn.Module):
    """Self-attention over the second dimension.

    With `normalize` queries and keys have unit root mean square, times learned weights, before
    their product (the `normalised q and k` of C-ViViT), which keeps the logits from growing.
    """

    def __init__(self, dim: int, num_heads: int, *, normalize: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.normalize = normalize
        head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.norm_q = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.norm_k = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Let tokens attend to each other; if ``causal``, token i to tokens 0..i only."""
        q, k, v = self._projected(x)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.to_out(rearrange(out, "b h n c -> b n (h c)"))

    def _projected(self, x: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (b, h, n, c)."""
        qkv = self.to_qkv(x)
        if not isinstance(self.norm_q, nn.RMSNorm) or not isinstance(self.norm_k, nn.RMSNorm):
            qkv = rearrange(qkv, "b n (three h c) -> three b h n c", three=3, h=self.num_heads)
            q, k, v = qkv
            return q, k, v
        dim = x.shape[-1]
        qk, v = qkv.split((2 * dim, dim), dim=-1)
        qk = rearrange(qk, "b n (two h c) -> two b h n c", two=2, h=self.num_heads)
        # Queries and keys meet in their product alone, so one of them can carry both weights. They
        # take its precision: under autocast a mixture has no fused kernel and makes torch warn.
        q, k = F.rms_norm(qk, self.norm_q.normalized_shape, eps=self.norm_q.eps)
        q = q * (self.norm_q.weight * self.norm_k.weight).to(q.dtype)
        return q, k, rearrange(v, "b n (h c) -> b h n c", h=self.num_heads)


class GatedFeedForward(nn.Module):
    """Two linear maps with a GELU between, or gated by one (GEGLU, Shazeer 2020).

    GEGLU has two thirds of the hidden width, so that both have about 8·dim² weights; rounded up to
    a multiple of 8, without which half precision misses the tensor cores.
    """

    def __init__(self, dim: int, *, gated: bool = True) -> None:
        super().__init__()
        self.gated = gated
        hidden = 8 * -(-dim // 3) if gated else 4 * dim
        self.inner = nn.Linear(dim, 2 * hidden if gated else hidden)
        self.outer = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return W₂(W₁x · GELU(V₁x)), or W₂ GELU(W₁x)."""
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


class Block(nn.Module):
    """x ← x + Attention(LN(x)); x ← x + GatedFeedForward(LN(x))."""

    def __init__(
        self, dim: int, num_heads: int, *, normalize: bool = False, gated: bool = True
    ) -> None:
        super().__init__()
        check_counts(dim=dim, num_heads=num_heads)
        if dim % num_heads:
            raise ValueError(f"num_heads must divide dim={dim}, got {num_heads}")
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads, normalize=normalize)
        self.norm_feedforward = nn.LayerNorm(dim)
        self.feedforward = GatedFeedForward(dim, gated=gated)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Map tokens to tokens; see `Attention.forward`."""
        weight = self.norm_attention.weight
        check_sizes("x", x, "b", "n", len(weight))
        check_dtype("x", x, weight, half=True)
        x = x + self.attention(self.norm_attention(x), causal=causal)
        return x + self.feedforward(self.norm_feedforward(x))
