"""Multi-head self-attention, causal or not, with normalised queries and keys.

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

    Args:
        dim: width of the tokens.
        num_heads: heads; must divide `dim`.
        normalize: give queries and keys unit root mean square, times learned weights, before
            their product (the `normalised q and k` of C-ViViT); keeps the logits from growing.

    Raises:
        ValueError: `dim` or `num_heads` is no whole number of at least 1, or `num_heads` doesn't
            divide `dim`.
    """

    def __init__(self, dim: int, num_heads: int, *, normalize: bool = False) -> None:
        super().__init__()
        check_counts(dim=dim, num_heads=num_heads)
        if dim % num_heads:
            raise ValueError(f"num_heads must divide dim={dim}, got {num_heads}")
        self.num_heads = num_heads
        self.normalize = normalize
        head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.norm_q = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.norm_k = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Let tokens attend to each other.

        Args:
            x: tokens.
            causal: let token i see tokens 0..i only.

        Raises:
            ValueError: tokens of another width or dtype than the weights'.
        """
        weight = self.to_qkv.weight
        check_sizes("x", x, "b", "n", weight.shape[1])
        check_dtype("x", x, weight, half=True)
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
