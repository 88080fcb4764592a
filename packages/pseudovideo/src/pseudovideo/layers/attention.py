"""Multi-head self-attention with normalised queries and keys, a bias, and a cache."""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.layers.cache import KeyValueCache


class Attention(nn.Module):
    """Self-attention over the second dimension.

    Args:
        dim: width of the tokens.
        num_heads: heads; must divide `dim`.
        normalize: give queries and keys unit root mean square, times learned weights, before
            their product (the `normalised q and k` of C-ViViT); keeps the logits from growing.

    Raises:
        ValueError: `num_heads` doesn't divide `dim`.
    """

    def __init__(self, dim: int, num_heads: int, *, normalize: bool = False) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads must divide dim={dim}, got {num_heads}")
        self.num_heads = num_heads
        self.normalize = normalize
        head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.norm_q = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.norm_k = nn.RMSNorm(head_dim, eps=1e-6) if normalize else nn.Identity()
        self.to_out = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        *,
        causal: bool = False,
        bias: Float[Tensor, "h n n"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Attend.

        Args:
            x: tokens; with a cache, the next ones of each sequence.
            causal: let token i see tokens 0..i only.
            bias: added to the logits; excludes `causal`.
            cache: keys and values of the tokens before these; theirs are added to it. Causal by
                nature; takes one token at a time once it isn't empty.

        Raises:
            ValueError: `causal` and `bias`, or several tokens behind a filled cache.
        """
        if causal and bias is not None:
            raise ValueError("causal and bias exclude each other: put -inf into the bias")
        q, k, v = rearrange(
            self.to_qkv(x), "b n (three h c) -> three b h n c", three=3, h=self.num_heads
        )
        q, k = self.norm_q(q), self.norm_k(k)
        if cache is not None:
            if cache.length and x.shape[1] != 1:
                raise ValueError(f"x must hold one token behind a filled cache, got {x.shape[1]}")
            causal = not cache.length and x.shape[1] > 1
            k, v = cache.append(k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        return self.to_out(rearrange(out, "b h n c -> b n (h c)"))
