"""Multi-head self-attention, causal or not, with normalised queries and keys."""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


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

    def forward(self, x: Float[Tensor, "b n d"], *, causal: bool = False) -> Float[Tensor, "b n d"]:
        """Attend.

        Args:
            x: tokens.
            causal: let token i see tokens 0..i only.
        """
        q, k, v = rearrange(
            self.to_qkv(x), "b n (three h c) -> three b h n c", three=3, h=self.num_heads
        )
        if self.normalize:
            q, k = _normalized(q, self.norm_q), _normalized(k, self.norm_k)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.to_out(rearrange(out, "b h n c -> b n (h c)"))


def _normalized(x: Float[Tensor, "b h n c"], norm: nn.Module) -> Float[Tensor, "b h n c"]:
    """The norm in the precision of its input.

    Under autocast the queries are in half precision and the weights are not, a mixture that has
    no fused kernel and makes torch warn.
    """
    assert isinstance(norm, nn.RMSNorm)
    weight = norm.weight
    return F.rms_norm(x, norm.normalized_shape, weight.to(x.dtype), norm.eps)
