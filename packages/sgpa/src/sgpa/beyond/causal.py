r"""Sparse GP attention of decoders (thesis section 6.2, made precise). Experimental.

Token t conditions on the keys 1..t. The posterior's covariance does not depend on t, only its mean
does: with C the correlations, :math:`w(x) = C(x, Z) L^{-\top}`, :math:`\kappa^\perp(x, x') =
C(x, x') - w(x) \cdot w(x')` and all in units of the prior standard deviation,

.. math::
    m_t &= \sum_{j \le t} \kappa^\perp(q_t, k_j) v_j + w(q_t) \cdot c, \\
    \Sigma_d(x, x') &= \kappa^\perp(x, x') + w(x)^\top R_d R_d^\top w(x').

Queries and keys need not share their projection: the process lives on the space of both.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_choice, check_counts, check_positive
from probseq.errors import CholeskyError
from probseq.transformers.attention import attention_kernel, full_precision
from probseq.transformers.causal import NormaliserName, causal_linear, causal_sum, check_room
from probseq.transformers.functional import rbf_matrix
from probseq.transformers.names import ATTENTION_JITTER, KernelName
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples
from sgpa.attention import InducingAttention
from sgpa.beyond.process import CausalNoise
from sgpa.names import CovarianceName, InitialPosterior
from sgpa.posterior import (
    InducingTerms,
    correlation_matrix,
    prior_scale,
    relative_variance,
    residual_deviation,
    whiten,
)


class CausalCache(NamedTuple):
    r"""What a layer knows of the tokens so far, in room for more."""

    # k over the lengthscales, centred, ``(heads, batch, max_tokens, width)``
    keys: Float[Tensor, "heads batch max_tokens dim"]
    # v in units of the prior, likewise, and behind them d(k)
    values: Float[Tensor, "heads batch max_tokens columns"]
    # :math:`\sum_j w(k_j) v_j^\top`, ``(heads, batch, inducing, width)``
    state: Float[Tensor, "heads batch inducing channels"]
    noise: CausalNoise  # of all tokens that there is room for, with one sample
    # Of ``"full"``: queries, their w, and the rows of the residual's Cholesky factor
    rows: tuple[Tensor, Tensor, Tensor] | None
    length: int  # number t of tokens


class CausalSparseGPAttention(InducingAttention):
    r"""Multi-head attention of a decoder whose heads are sparse Gaussian processes.

    The output is a draw of :math:`a_t f(q_t)`. The penalty is the online KL divergence, from token
    to token in function space,

    .. math:: \sum_t \mathrm{KL}(q_t \| q_{t-1}) = \sum_t \tfrac12 |v_t|^2 (1 - |w(k_t)|^2),

    in nats a sequence, plus that of the global inducing inputs. It is a regulariser: already a
    thousandth of it costs predictions, and a tenth silences the attention. Start with a weight of
    1e-5 in the loss, and print it beside the loss.

    Cost of a pass O(T² (d + s) + T M (M + s)) a head, of a step O(t (d + s) + M (M + d + s)); with
    ``covariance="full"`` O(T³) and O(t²) more.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: global inducing inputs M of each head, in the space of its keys.
        kernel: ``"rbf"`` or ``"exponential"``.
        tied: whether queries and keys share their projection, as in the thesis; an RBF kernel then
            weighs each token most on itself.
        normalise: a_t, ``"none"``: 1; ``"count"``: 1/t; ``"kernel"``: one over the sum of the
            kernel over the keys, :math:`1 / \sum_{j \le t} k(q_t, k_j)`.
        covariance: how tokens are drawn together, see :class:`~sgpa.attention.SparseGPAttention`.
        num_data: number of training sequences, which pay the global part of the KL divergence
            together; ``None`` for the whole of it in each.
        initial_posterior: ``"prior"`` starts where the global part is zero, ``"random"`` as the
            authors do.
        initial_variance: the prior variance to start from; ``None`` for the authors'.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import torch, sgpa
        >>> attention = sgpa.CausalSparseGPAttention(64, num_heads=4, num_inducing=16).eval()
        >>> x = torch.randn(2, 10, 64)
        >>> cache = attention.init_cache(batch=2, max_tokens=10)
        >>> for t in range(10):
        ...     (values, kl), cache = attention.step(x[:, t : t + 1], cache)
        >>> values.shape
        torch.Size([2, 1, 64])
    """

    first, key = "to_v", "to_k"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        *,
        kernel: KernelName = "rbf",
        tied: bool = False,
        normalise: NormaliserName = "count",
        covariance: CovarianceName = "inducing",
        num_data: int | None = None,
        initial_posterior: InitialPosterior = "prior",
        initial_variance: float | None = None,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_counts(num_inducing=num_inducing)
        check_choice("normalise", normalise, NormaliserName)
        check_choice("covariance", covariance, CovarianceName)
        check_choice("initial_posterior", initial_posterior, InitialPosterior)
        if num_data is not None:
            check_counts(num_data=num_data)
        check_positive(jitter=jitter)
        self.num_inducing = num_inducing
        self.kernel_name: KernelName = kernel
        self.normalise: NormaliserName = normalise
        self.covariance: CovarianceName = covariance
        self.jitter, self.global_weight = jitter, 1.0 if num_data is None else 1.0 / num_data
        width = dim // num_heads
        self.kernel = attention_kernel(kernel, width, num_heads, initial_variance=initial_variance)
        self.to_q = None if tied else nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.inducing_inputs = nn.Parameter(torch.randn(num_heads, num_inducing, dim))
        initial = torch.randn if initial_posterior == "random" else torch.zeros
        self.inducing_mean = nn.Parameter(initial(num_heads, num_inducing, width))
        raw = initial(num_heads, width, num_inducing, num_inducing)
        self.raw_inducing_factor = nn.Parameter(raw.tril())

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
        """Draw the attention output of each token from its posterior.

        Args:
            x: tokens, already normalised by the block.
            mask: true at real tokens, behind padding on the left.
            token_map: as in :class:`~sgpa.attention.SparseGPAttention`.
            generator: source of the draws.
            num_samples: draw S samples from one posterior and fold them into the batch.
            noise: of at least as many tokens, in place of new draws; :meth:`step` with the same
                noise gives the same output.

        Returns:
            Sampled values, ``(batch, tokens, dim)`` or ``(S * batch, tokens, dim)``, and the KL
            divergence in nats a sequence.

        Raises:
            ValueError: ``x``, ``mask`` or ``noise`` has a wrong shape or type.
            CholeskyError: a covariance cannot be factorised.
        """
        self._check(x, mask)
        check_num_samples(num_samples)
        batch, tokens = x.shape[:2]
        if noise is None:
            noise = self.noise(num_samples or 1, batch, tokens, generator=generator)
        noise.check(num_samples or 1, batch, tokens, self.inducing_mean)
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            q, k, v = self._scaled(x, terms, mask)
            w_q, w_k = (self._whitened(each, terms) for each in (q, k))
            state = v.new_zeros(*v.shape[:2], self.num_inducing, v.shape[-1] - 1)
            mean, _ = self._mean(q, k, v, w_q, w_k, terms, state)
            drawn = self._around(noise, w_q, terms, tokens)
            if self.covariance == "full":
                root = self._root(q, w_q, mask)
                drawn = drawn + root @ noise.token[..., :tokens, :]
            weight = self._weight(q, k, v, mask, terms)
            out = rearrange(weight * (mean + drawn), "s h b t c -> (s b) t (h c)")
            # Σ_t ½ |v_t|² (1 − |w(k_t)|²)
            online = self._online(v, w_k).sum((0, 2)).mean()
            penalty = online + self.global_weight * terms.kl
        return AttentionOutput(self.to_out(out), penalty)

    def token_kl(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        token_map: TokenMap | None = None,
    ) -> Float[Tensor, "batch tokens"]:
        """Return KL(q_t ‖ q_{t−1}) of each token, summed over heads, in nats."""
        self._check(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            _, k, v = self._scaled(x, terms, mask)
            return self._online(v, self._whitened(k, terms)).sum(0)

    def noise(
        self, num_samples: int, batch: int, tokens: int, *, generator: torch.Generator | None = None
    ) -> CausalNoise:
        """Draw the noise of so many tokens."""
        sizes = (num_samples, self.num_heads, batch, tokens, self.dim // self.num_heads)
        like = full_precision(self.to_v.weight)
        return CausalNoise.draw(*sizes, self.num_inducing, like=like, generator=generator)

    def init_cache(
        self,
        batch: int,
        max_tokens: int,
        *,
        generator: torch.Generator | None = None,
        noise: CausalNoise | None = None,
    ) -> CausalCache:
        """Return what is known before the first token.

        Args:
            batch: number of sequences; samples count as sequences.
            max_tokens: room for so many tokens.
            generator: source of the noise, all of which is drawn here.
            noise: of one sample and at least ``max_tokens`` tokens, in place of new draws.

        Raises:
            ValueError: a count is no whole number of at least 1, or ``noise`` has a wrong shape.
        """
        check_counts(batch=batch, max_tokens=max_tokens)
        if noise is None:
            noise = self.noise(1, batch, max_tokens, generator=generator)
        noise.check(1, batch, max_tokens, self.inducing_mean)
        heads, inducing, width = self.inducing_mean.shape
        new = full_precision(self.to_v.weight).new_zeros
        first = (heads, batch, max_tokens)
        rows = None
        if self.covariance == "full":
            rows = (new(*first, width), new(*first, inducing), new(*first, max_tokens))
        keys, values = new(*first, width), new(*first, width + 1)
        return CausalCache(keys, values, new(heads, batch, inducing, width), noise, rows, 0)

    @torch.no_grad()
    def step(
        self,
        x: Float[Tensor, "batch new dim"],
        cache: CausalCache,
        *,
        token_map: TokenMap | None = None,
    ) -> tuple[AttentionOutput, CausalCache]:
        """Draw the output of the next tokens, without gradients.

        Args:
            x: the next tokens, one or more of each sequence.
            cache: of those before; it must not be used again.
            token_map: as in :meth:`forward`.

        Returns:
            Values of these tokens and their KL divergence in nats a sequence, without its global
            part; and the new cache.

        Raises:
            ValueError: ``x`` has a wrong shape or type, or there is no room.
            CholeskyError: a covariance cannot be factorised.
        """
        self._check(x, None)
        start, end = cache.length, cache.length + x.shape[1]
        check_room(end, cache.keys.shape[2])
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            q, k, v = self._scaled(x, terms, None)
            w_q, w_k = (self._whitened(each, terms) for each in (q, k))
            cache.keys[:, :, start:end], cache.values[:, :, start:end] = k, v
            keys, values = cache.keys[:, :, :end], cache.values[:, :, :end]
            mean, state = self._mean(q, keys, values, w_q, w_k, terms, cache.state)
            noise = CausalNoise(cache.noise.inducing, cache.noise.token[..., start:end, :])
            drawn = self._around(noise, w_q, terms, end - start)
            if cache.rows is not None:
                root = self._next_root(q, w_q, cache.rows, start)
                drawn = drawn + root @ cache.noise.token[..., :end, :]
            weight = self._weight(q, keys, values, None, terms)
            out = rearrange(weight * (mean + drawn), "s h b t c -> (s b) t (h c)")
            penalty = self._online(v, w_k).sum((0, 2)).mean()
        return AttentionOutput(self.to_out(out), penalty), cache._replace(state=state, length=end)

    def _scaled(
        self, x: Tensor, terms: InducingTerms, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return centred q/ℓ and k/ℓ, and [d(k) v, d(k)], zero at padding."""
        keys, values = (
            full_precision(rearrange(linear(x), "b t (h d) -> h b t d", h=self.num_heads))
            for linear in (self.to_k, self.to_v)
        )
        kernel, queries = self._head_kernel(), keys
        if self.to_q is not None:
            queries = rearrange(self.to_q(x), "b t (h d) -> h b t d", h=self.num_heads)
            queries = full_precision(queries)
        queries, keys = (each / kernel.lengthscale[:, None] for each in (queries, keys))
        scale = prior_scale(keys, kernel).expand_as(values[..., :1])
        values = torch.cat((scale * values, scale), -1)
        if mask is not None:
            values = values.masked_fill(~mask[None, :, :, None], 0.0)
        centre = terms.centre[:, None]
        return queries - centre, keys - centre, values

    def _whitened(self, scaled: Tensor, terms: InducingTerms) -> Tensor:
        return whiten(scaled, terms)

    def _mean(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        terms: InducingTerms,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return m of the last tokens, and the state behind them; w_k is that of these tokens."""
        count = q.shape[2]
        v = v[..., :-1]
        # Σ_{j≤t} C(q_t, k_j) v_j
        kernel = causal_sum(_correlations(q, k), v, count)
        # − w(q_t) · Σ_{j≤t} w(k_j) v_jᵀ
        linear, state = causal_linear(w_q, w_k, v[:, :, -count:], state)
        mean = kernel - linear
        # + w(q_t) · c
        if terms.mean is not None:
            mean = mean + w_q @ terms.mean[:, None]
        return mean, state

    def _weight(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, terms: InducingTerms
    ) -> Tensor:
        """Return a_t d(q_t) of the last tokens."""
        count, kernel = q.shape[2], self._head_kernel()
        if self.normalise == "kernel":
            # 1 / Σ_{j≤t} C(q_t, k_j) d(k_j): d(q_t) cancels.
            total = causal_sum(_correlations(q, k), v[..., -1:], count)
            return 1.0 / total.masked_fill(total <= 0.0, 1.0)  # padding sees nothing
        scale = prior_scale(q + terms.centre[:, None], kernel)
        if self.normalise == "none":
            return scale
        places = torch.arange(k.shape[2] - count, k.shape[2], device=q.device) + 1
        seen = places.to(q)[:, None]
        if mask is not None:
            seen = mask.cumsum(-1).clamp(min=1).to(q)[None, :, :, None]
        return scale / seen

    def _around(self, noise: CausalNoise, w_q: Tensor, terms: InducingTerms, tokens: int) -> Tensor:
        """Return the deviation from the mean, of ``"full"`` what the inducing inputs share."""
        token_noise = noise.token[..., :tokens, :]
        if self.covariance == "diag":
            # √(1 − |w|² + |Rᵀw|²) ε_t
            return relative_variance(w_q, terms.factors).sqrt() * token_noise
        # w R ε'
        shared = w_q @ einsum(terms.factors, noise.inducing, "h c m n, s h b c n -> s h b m c")
        if self.covariance == "full":
            return shared
        # + √(1 − |w|²) ε_t
        return shared + residual_deviation(w_q) * token_noise

    def _root(self, q: Tensor, w_q: Tensor, mask: Tensor | None) -> Tensor:
        """Return chol(K⊥ + jI) over the queries; padding is independent of all else."""
        eye = torch.eye(q.shape[2], dtype=q.dtype, device=q.device)
        residual = correlation_matrix(q) - w_q @ w_q.mT
        if mask is not None:
            residual = torch.where((mask[:, :, None] & mask[:, None, :])[None], residual, eye)
        return self._factor(residual + self.jitter * eye)

    def _next_root(
        self, q: Tensor, w_q: Tensor, rows: tuple[Tensor, Tensor, Tensor], start: int
    ) -> Tensor:
        """Return the rows of chol(K⊥ + jI) of the next queries, and write them to the cache.

        Factors are nested: A₁₁ = L₁₁L₁₁ᵀ, L₂₁ = A₂₁L₁₁⁻ᵀ, L₂₂ = chol(A₂₂ − L₂₁L₂₁ᵀ).
        """
        queries, whitened, root = rows
        end = start + q.shape[2]
        queries[:, :, start:end], whitened[:, :, start:end] = q, w_q
        residual = rbf_matrix(q, queries[:, :, :end]) - w_q @ whitened[:, :, :end].mT
        before = root[:, :, :start, :start]
        known = residual[..., :start]
        across = torch.linalg.solve_triangular(before.mT, known, upper=True, left=False)
        eye = torch.eye(end - start, dtype=q.dtype, device=q.device)
        corner = self._factor(residual[..., start:] + self.jitter * eye - across @ across.mT)
        root[:, :, start:end, :end] = torch.cat((across, corner), -1)
        return root[:, :, start:end, :end]

    def _factor(self, covariance: Tensor) -> Tensor:
        root, failed = torch.linalg.cholesky_ex(covariance)
        if not torch.compiler.is_compiling() and bool(failed.any()):
            raise CholeskyError(
                f"the covariance of the tokens cannot be factorised with jitter={self.jitter:g}: "
                "use more, float64, or covariance='inducing'"
            )
        return root

    def _online(self, v: Tensor, w_k: Tensor) -> Tensor:
        """Return KL(q_t ‖ q_{t−1}) = ½ |v_t|² (1 − |w(k_t)|²), ``(heads, batch, tokens)``."""
        left = (1.0 - w_k.square().sum(-1)).clamp(min=0.0)
        return 0.5 * v[..., :-1].square().sum(-1) * left


def _correlations(q: Tensor, k: Tensor) -> Callable[[slice, slice], Tensor]:
    """Return C(q_t, k_j) in blocks."""
    return lambda rows, columns: rbf_matrix(q[:, :, rows], k[:, :, columns])
