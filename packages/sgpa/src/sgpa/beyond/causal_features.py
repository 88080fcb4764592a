r"""Random-feature sparse GP attention of decoders: constant cost a token. Not in the papers.

Experimental. With the features of :mod:`sgpa.random_features` a token's output is

.. math::
    F_t = \phi(q_t)^\top [B_0 + (I - QQ^\top) S_t], \quad S_t = \sum_{j \le t} \phi(k_j) v_j^\top,
    \quad B_0 = (I - QQ^\top) \epsilon + Q (c + R_d \epsilon'_d):

linear attention whose noise is a random initial state. It is an exact sample of the whole function,
and the state is all that is kept of the tokens.
"""

from typing import Any, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.transformers.attention import full_precision
from probseq.transformers.causal import causal_linear
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples
from sgpa.beyond.causal import CausalSparseGPAttention
from sgpa.beyond.process import CausalNoise
from sgpa.posterior import InducingTerms, prior_scale
from sgpa.random_features import feature_terms, features, orthogonal_frequencies


class FeatureCache(NamedTuple):
    """What a layer knows of the tokens so far."""

    # S_t, ``(heads, batch, features, width)``
    state: Float[Tensor, "heads batch features channels"]
    noise: CausalNoise  # ε' and, in place of tokens', ε of the features, one sample
    length: int  # number t of tokens


class CausalFeatureAttention(CausalSparseGPAttention):
    """Sparse GP attention of a decoder whose kernel has r random features.

    A GP in its own right, near that of :class:`CausalSparseGPAttention` with ``covariance="full"``
    for many features. Cost of a pass O(T r (d + s)) a head, of a step O(r (d + s + M)), whatever
    the number of tokens before it.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: global inducing inputs M of each head.
        num_features: random features r of each head, even, more than M.
        settings: those of :class:`CausalSparseGPAttention`, but ``covariance``; ``normalise`` is
            ``"none"`` or ``"count"``: sums of this kernel need not be positive.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, dim: int, num_heads: int, num_inducing: int, num_features: int = 64, **settings: Any
    ) -> None:
        check_counts(num_features=num_features)
        if num_features % 2 or num_features <= num_inducing:
            raise ValueError(
                f"num_features must be even and more than num_inducing={num_inducing}, got "
                f"{num_features}"
            )
        if settings.get("normalise") == "kernel":
            raise ValueError("normalise must be 'none' or 'count' with random features")
        super().__init__(dim, num_heads, num_inducing, covariance="full", **settings)
        self.num_features, width = num_features, dim // num_heads
        drawn = [orthogonal_frequencies(num_features // 2, width) for _ in range(num_heads)]
        # Not learned, but part of the function: saved, and never drawn again.
        self.register_buffer("frequencies", torch.stack(drawn))
        self.frequencies: Tensor

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
        """Draw the output of each token; see :meth:`CausalSparseGPAttention.forward`.

        The noise of :meth:`noise` has one row for each feature in place of one for each token.
        """
        self._check(x, mask)
        check_num_samples(num_samples)
        batch, samples = x.shape[0], num_samples or 1
        if noise is None:
            noise = self.noise(samples, batch, x.shape[1], generator=generator)
        noise.check(samples, batch, self.num_features, self.inducing_mean)
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            out, online, _ = self._advance(x, mask, terms, self._empty(batch), noise, 0)
        return AttentionOutput(self.to_out(out), online + self.global_weight * terms.kl)

    def noise(
        self, num_samples: int, batch: int, tokens: int, *, generator: torch.Generator | None = None
    ) -> CausalNoise:
        """Draw the noise of sequences, however long they are."""
        return super().noise(num_samples, batch, self.num_features, generator=generator)

    def init_cache(
        self,
        batch: int,
        max_tokens: int,
        *,
        generator: torch.Generator | None = None,
        noise: CausalNoise | None = None,
    ) -> Any:
        """Return what is known before the first token; there is room for any number of them."""
        check_counts(batch=batch, max_tokens=max_tokens)
        if noise is None:
            noise = self.noise(1, batch, max_tokens, generator=generator)
        noise.check(1, batch, self.num_features, self.inducing_mean)
        return FeatureCache(self._empty(batch), noise, 0)

    @torch.no_grad()
    def step(
        self, x: Float[Tensor, "batch new dim"], cache: Any, *, token_map: TokenMap | None = None
    ) -> tuple[AttentionOutput, Any]:
        """Draw the output of the next tokens; see :meth:`CausalSparseGPAttention.step`."""
        self._check(x, None)
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            advanced = self._advance(x, None, terms, cache.state, cache.noise, cache.length)
        out, online, state = advanced
        new = FeatureCache(state, cache.noise, cache.length + x.shape[1])
        return AttentionOutput(self.to_out(out), online), new

    def _advance(
        self,
        x: Tensor,
        mask: Tensor | None,
        terms: InducingTerms,
        state: Tensor,
        noise: CausalNoise,
        start: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the heads' outputs side by side, the KL divergence of a sequence, and S."""
        q, k, v = self._scaled(x, terms, mask)
        phi, basis = features(q, self.frequencies[:, None]), terms.whitener[:, None]
        w_q = self._whitened(q, terms)
        # φ(q)ᵀ (I − QQᵀ)
        free = phi - w_q @ basis
        # Σ_{j≤t} φ(q_t)ᵀ (I − QQᵀ) φ(k_j) v_jᵀ
        columns = features(k, self.frequencies[:, None])
        mean, state = causal_linear(free, columns, v[..., :-1], state)
        # + w(q_t) · c
        if terms.mean is not None:
            mean = mean + w_q @ terms.mean[:, None]
        # + φ(q_t)ᵀ [(I − QQᵀ) ε + Q R ε']
        shared = einsum(terms.factors, noise.inducing, "h c m n, s h b c n -> s h b m c")
        drawn = free @ noise.token[..., : self.num_features, :] + w_q @ shared
        scale = prior_scale(q + terms.centre[:, None], self._head_kernel())
        if self.normalise == "count":
            seen = torch.arange(start, start + x.shape[1], device=x.device)[:, None] + 1
            if mask is not None:
                seen = mask.cumsum(-1).clamp(min=1)[None, :, :, None]
            scale = scale / seen.to(q)
        out = rearrange(scale * (mean + drawn), "s h b t c -> (s b) t (h c)")
        return out, self._online(v, self._whitened(k, terms)).sum((0, 2)).mean(), state

    def _whitened(self, scaled: Tensor, terms: InducingTerms) -> Tensor:
        """Return w = Qᵀ φ(x)."""
        return features(scaled, self.frequencies[:, None]) @ terms.whitener.mT[:, None]

    def _terms_of(self, inducing: Tensor) -> InducingTerms:
        parameters = (self._head_kernel(), self.inducing_mean, self.raw_inducing_factor)
        return feature_terms(inducing, *parameters, self.frequencies)

    def _empty(self, batch: int) -> Tensor:
        heads, width = self.num_heads, self.dim // self.num_heads
        like = full_precision(self.to_v.weight)
        return like.new_zeros(heads, batch, self.num_features, width)
