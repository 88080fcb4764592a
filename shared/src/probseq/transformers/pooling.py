"""From token values to one vector a sequence.

NaN and infinity in a tensor reach the result.
"""

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from probseq.checks import check_choice, check_counts
from probseq.transformers.names import PoolingName
from probseq.transformers.protocol import check_tokens


class Pooling(nn.Module):
    """Pool tokens into one vector of ``output_dim``, never looking at padding.

    ``"mean"`` is over real tokens; ``"sequence"`` the softmax of a learned score over tokens (what
    SGPA's vision transformers use, where the thesis says mean pooling); ``"cls"`` the first token;
    ``"flatten"`` all ``max_tokens`` tokens side by side, zeros in place of padding.
    """

    def __init__(self, kind: PoolingName, dim: int, max_tokens: int = 1) -> None:
        super().__init__()
        check_choice("kind", kind, PoolingName)
        check_counts(dim=dim, max_tokens=max_tokens)
        self.kind, self.dim, self.max_tokens = kind, dim, max_tokens
        self.output_dim = dim * max_tokens if kind == "flatten" else dim
        self.score = nn.Linear(dim, 1) if kind == "sequence" else None

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch output_dim"]:
        """Pool ``x``; a sequence of nothing but padding gives zeros."""
        check_tokens(x, mask, self.dim, getattr(self.score, "weight", x), half=True)
        if self.kind == "cls":
            return x[:, 0]
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.kind == "flatten":
            room = self.max_tokens - x.shape[1]
            if room < 0:
                raise ValueError(
                    f"x must have at most max_tokens={self.max_tokens} tokens, got {x.shape[1]}"
                )
            return pad(x, (0, 0, 0, room)).flatten(1)
        if self.score is None:
            weights = torch.ones_like(x[..., 0]) if mask is None else mask.to(x)
        else:
            score = self.score(x).flatten(1)
            if mask is not None:
                score = score.masked_fill(~mask, -torch.inf)
            # Subtracting the maximum keeps exp in range; the quotient below doesn't change.
            peak = score.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(score.dtype).min)
            weights = torch.exp(score - peak)
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.clamp(min=torch.finfo(total.dtype).tiny)
        return einsum(weights, x, "batch tokens, batch tokens dim -> batch dim")
