"""Softmax attention with a sparse Gaussian process as its deviation.

Not in the papers. NaN and infinity in a tensor reach the result.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.gaussians import DiagonalGaussian
from probseq.transformers.attention import MultiHeadAttention, full_precision, softmax_attention
from probseq.transformers.names import ATTENTION_JITTER
from probseq.transformers.protocol import TokenMap
from sgpa.beyond.process import QueryProcess


class ResidualSparseGPAttention(MultiHeadAttention):
    r"""Multi-head softmax attention plus a sparse Gaussian process of the queries.

    Softmax attention is the prior mean of each head's output, a sparse GP over the space of its
    queries the deviation from it, see :class:`~sgpa.beyond.process.QueryProcess`:

    .. math::
        F_t = \mathrm{softmax}(q_t k^\top / \sqrt s) v + \sigma g(q_t / s^{1/4}).

    The KL divergence needs the parameters alone.

    As sigma goes to 0, or wherever the deviation is zero, this is softmax attention, and its
    projections have the same names as those of
    :class:`~probseq.transformers.attention.SoftmaxAttention`:
    ``layer.load_state_dict(layer.state_dict() | softmax.state_dict())`` takes over trained ones;
    :meth:`initialise_inducing` then puts the inducing inputs where the queries are. Cost
    O(B T² + B T M² + M³) a head in time.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: inducing inputs M of each head.
        initial_variance: σ², of all heads, to start from; ``None`` for a hundredth of the variance
            of softmax attention's output, each time that inducing inputs are placed.
        rho: start from R = ρI, with m = 0. 1 is the prior, where the KL divergence is 0 and the
            deviation has the same variance everywhere; .1 is small where the data are, at 1.8 nats
            for each inducing output.
        num_data: number of training sequences, which pay the KL divergence together; ``None`` for
            the whole of it as the penalty.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.

    Example:
        >>> import torch
        >>> from sgpa import ResidualSparseGPAttention
        >>> attention = ResidualSparseGPAttention(64, num_heads=4, num_inducing=16, num_data=1000)
        >>> values, kl = attention(torch.randn(8, 50, 64))
        >>> values.shape, kl.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    first = "to_qkv"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        *,
        initial_variance: float | None = None,
        rho: float = 1.0,
        num_data: int | None = None,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        self.num_data = 1 if num_data is None else num_data
        check_counts(num_data=self.num_data)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.process = QueryProcess(
            num_heads,
            dim // num_heads,
            num_inducing,
            initial_variance=initial_variance,
            rho=rho,
            jitter=jitter,
        )
        # Standard normal, as tokens are behind a LayerNorm.
        self.initialise_inducing(torch.randn(1, max(64, num_inducing), dim))

    def posterior(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> DiagonalGaussian:
        """Return the posterior marginals of the heads' outputs, before ``to_out`` mixes them.

        Tokens ``x`` are already normalised by the block, the mask is true at real ones; the
        Gaussian is ``(heads, batch, tokens, dim / heads)``.
        """
        queries, attended = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            mean, variance = self.process.moments(queries)
        if bool(variance.isnan().any()) or bool((attended + mean).isnan().any()):
            raise ValueError("x must be finite, got tokens whose posterior is not a number")
        return DiagonalGaussian(attended + mean, variance)

    @torch.no_grad()
    def initialise_inducing(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Put the inducing inputs on queries of these tokens, and set lengthscales and variance.

        Each head has the queries of M tokens that are drawn at random, and one lengthscale,
        ℓ² = ½ median |q − q'|² over random pairs; σ² is a hundredth of the variance that softmax
        attention's output has over the tokens, unless an initial variance was given.

        Args:
            x: tokens, already normalised by the block, of which most differ; at least M and two.
            mask: true at real tokens.
            generator: source of the draws.
        """
        queries, attended = (
            rearrange(each, "h b t d -> h (b t) d") for each in self.project(x, mask)
        )
        if mask is not None:
            queries, attended = (each[:, mask.flatten()] for each in (queries, attended))
        variance = float(attended.var(1, correction=0).mean())
        self.process.initialise(queries, variance, generator=generator)

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return queries and softmax attention, ``(heads, batch, tokens, dim / heads)``."""
        q, k, v = rearrange(
            self.to_qkv(x), "b t (three h d) -> three b h t d", three=3, h=self.num_heads
        ).unbind(0)
        attended = softmax_attention(q, k, v, mask)
        queries, attended = (
            full_precision(rearrange(each, "b h t d -> h b t d")) for each in (q, attended)
        )
        return queries, attended

    def _attend(
        self,
        tokens: Any,
        mask: Tensor | None,
        token_map: TokenMap | None,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        queries, attended = tokens
        deviation = self.process(queries, num_samples=num_samples or 1, generator=generator)
        samples = rearrange(attended + deviation, "s h b t c -> (s b) t (h c)")
        return samples, self.process.kl() / self.num_data
