"""Softmax attention with a sparse Gaussian process as its deviation.

Not in the papers. NaN and infinity in a tensor reach the result.
"""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_rates
from probseq.gaussians import DiagonalGaussian
from probseq.transformers.attention import (
    check_heads,
    full_precision,
    softmax_attention,
    split_heads,
)
from probseq.transformers.causal import KeyValueCache
from probseq.transformers.names import ATTENTION_JITTER
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples, check_tokens
from sgpa.beyond.process import CausalNoise, QueryProcess


class ResidualCache(NamedTuple):
    """What a causal layer knows of the tokens so far: keys and values, and the noise of all."""

    attention: KeyValueCache
    noise: CausalNoise


class ResidualSparseGPAttention(nn.Module):
    r"""Multi-head softmax attention plus a sparse Gaussian process of the queries.

    Softmax attention is the prior mean of each head's output, a sparse GP over the space of its
    queries the deviation from it, see :class:`~sgpa.beyond.process.QueryProcess`:

    .. math::
        F_t = \mathrm{softmax}(q_t k^\top / \sqrt d) v + \sigma g(q_t / d^{1/4}).

    The KL divergence needs the parameters alone.

    As sigma goes to 0, or wherever the deviation is zero, this is softmax attention, and its
    projections have the same names as those of
    :class:`~probseq.transformers.attention.SoftmaxAttention`:
    ``layer.load_state_dict(layer.state_dict() | softmax.state_dict())`` takes over trained ones;
    :meth:`place_inducing` then puts the inducing inputs where the queries are. Cost
    O(B T² + B T M² + M³) a head in time.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: inducing inputs M of each head.
        causal: whether a token attends to itself and to earlier ones alone.
        initial_variance: σ², of all heads, to start from; ``None`` for a hundredth of the variance
            of softmax attention's output, each time that inducing inputs are placed.
        rho: start from R = ρI, with m = 0; 1 is the prior, where the KL divergence is 0 and the
            deviation has the same variance everywhere.
        num_data: number of training sequences, which pay the KL divergence together; ``None`` for
            the whole of it as the penalty.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import torch
        >>> from sgpa import ResidualSparseGPAttention
        >>> attention = ResidualSparseGPAttention(64, num_heads=4, num_inducing=16, num_data=1000)
        >>> values, kl = attention(torch.randn(8, 50, 64))
        >>> values.shape, kl.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    stochastic = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        *,
        causal: bool = False,
        initial_variance: float | None = None,
        rho: float = 1.0,
        num_data: int | None = None,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_counts(num_inducing=num_inducing)
        if num_data is not None:
            check_counts(num_data=num_data)
        check_rates(dropout=dropout)
        self.dim, self.num_heads, self.causal = dim, num_heads, causal
        self.num_data = 1 if num_data is None else num_data
        width = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.process = QueryProcess(
            num_heads,
            width,
            width,
            num_inducing,
            initial_variance=initial_variance,
            rho=rho,
            jitter=jitter,
        )
        # Standard normal, as tokens are behind a LayerNorm.
        self.place_inducing(torch.randn(1, max(64, num_inducing), dim))

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        token_map: TokenMap | None = None,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
        noise: CausalNoise | None = None,
    ) -> AttentionOutput:
        """Draw the attention output from its posterior.

        Args:
            x: tokens, already normalised by the block.
            mask: true at real tokens.
            token_map: not needed: inducing inputs are queries.
            generator: source of the draws.
            num_samples: draw S samples from one posterior and fold them into the batch.
            noise: of at least as many tokens, in place of new draws.

        Returns:
            Sampled values, ``(batch, tokens, dim)`` or ``(S * batch, tokens, dim)``, and the KL
            divergence in nats over ``num_data``.

        Raises:
            ValueError: ``x`` or ``mask`` has a wrong shape or type, or the parameters are in half
                precision.
            CholeskyError: the covariance of the inducing inputs cannot be factorised.
        """
        check_tokens(x, mask, self.dim, getattr(self.to_qkv, "weight", x))
        check_num_samples(num_samples)
        queries, attended = self._attend(x, mask)
        options: dict[str, Any] = {"num_samples": num_samples, "generator": generator}
        if noise is not None:
            noise.check(num_samples or 1, *x.shape[:2], self.process.inducing_mean)
            token = noise.token[..., : x.shape[1], :]
            options |= {"inducing_noise": noise.inducing, "token_noise": token}
        return self._output(attended + self.process(queries, **options))

    def init_cache(
        self,
        batch: int,
        max_tokens: int,
        *,
        generator: torch.Generator | None = None,
        noise: CausalNoise | None = None,
    ) -> ResidualCache:
        """Return what is known before the first token, for a causal layer.

        Args:
            batch: number of sequences; samples count as sequences.
            max_tokens: room for so many tokens.
            generator: source of the noise, all of which is drawn here.
            noise: of one sample and at least ``max_tokens`` tokens, in place of new draws.

        Raises:
            ValueError: the layer is not causal, a count is no whole number of at least 1, or
                ``noise`` has a wrong shape.
        """
        if not self.causal:
            raise ValueError("causal must be True for a cache, got False")
        mean, width = self.process.inducing_mean, self.dim // self.num_heads
        cache = KeyValueCache.empty(batch, self.num_heads, max_tokens, width, self.to_qkv.weight)
        if noise is None:
            sizes = (1, self.num_heads, batch, max_tokens, width, mean.shape[1])
            noise = CausalNoise.draw(*sizes, like=full_precision(mean), generator=generator)
        noise.check(1, batch, max_tokens, mean)
        return ResidualCache(cache, noise)

    @torch.no_grad()
    def step(
        self,
        x: Float[Tensor, "batch new dim"],
        cache: ResidualCache,
        *,
        token_map: TokenMap | None = None,
    ) -> tuple[AttentionOutput, ResidualCache]:
        """Draw the output of the next tokens, without gradients; the old cache is used up.

        Raises:
            ValueError: ``x`` has a wrong shape or type, or there is no room.
        """
        check_tokens(x, None, self.dim, getattr(self.to_qkv, "weight", x))
        q, k, v = split_heads(self.to_qkv(x).chunk(3, -1), self.num_heads)
        known, start = cache.attention.append(k, v), cache.attention.length
        attended = rearrange(known.attend(q), "b h t d -> h b t d")
        drawn = self.process(
            rearrange(q, "b h t d -> h b t d"),
            inducing_noise=cache.noise.inducing,
            token_noise=cache.noise.token[..., start : known.length, :],
        )
        return self._output(full_precision(attended) + drawn), ResidualCache(known, cache.noise)

    def _output(self, samples: Tensor) -> AttentionOutput:
        samples = rearrange(samples, "s h b t c -> (s b) t (h c)")
        return AttentionOutput(self.to_out(samples), self.kl() / self.num_data)

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL divergence of all heads' inducing outputs from their prior, in nats."""
        return self.process.kl()

    def posterior(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> DiagonalGaussian:
        """Return the posterior marginals of the heads' outputs, before ``to_out`` mixes them.

        Args:
            x: tokens, already normalised by the block.
            mask: true at real tokens.

        Returns:
            A Gaussian of shape ``(heads, batch, tokens, dim / heads)``.

        Raises:
            ValueError: ``x`` or ``mask`` has a wrong shape or dtype, or ``x`` is not finite.
        """
        check_tokens(x, mask, self.dim, getattr(self.to_qkv, "weight", x))
        queries, attended = self._attend(x, mask)
        mean, variance = self.process.moments(queries)
        if bool(variance.isnan().any()) or bool((attended + mean).isnan().any()):
            raise ValueError("x must be finite, got tokens whose posterior is not a number")
        return DiagonalGaussian(attended + mean, variance)

    @torch.no_grad()
    def place_inducing(
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
            x: tokens, already normalised by the block.
            mask: true at real tokens.
            generator: source of the draws.

        Raises:
            ValueError: ``x`` or ``mask`` has a wrong shape or type, there are fewer than M tokens
                or fewer than two, or most of them are equal.
        """
        check_tokens(x, mask, self.dim, getattr(self.to_qkv, "weight", x))
        queries, attended = (
            rearrange(each, "h b t d -> h (b t) d") for each in self._attend(x, mask)
        )
        if mask is not None:
            queries, attended = (each[:, mask.flatten()] for each in (queries, attended))
        variance = float(attended.var(1, correction=0).mean())
        self.process.place(queries, variance=variance, generator=generator)

    def _attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return queries and softmax attention, ``(heads, batch, tokens, dim / heads)``."""
        q, k, v = rearrange(
            self.to_qkv(x), "b t (three h d) -> three b h t d", three=3, h=self.num_heads
        ).unbind(0)
        attended = softmax_attention(q, k, v, mask, causal=self.causal)
        queries, attended = (
            full_precision(rearrange(each, "b h t d -> h b t d")) for each in (q, attended)
        )
        return queries, attended
