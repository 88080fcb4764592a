"""Sparse Gaussian process attention, decoupled (thesis section 3.3).

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Mapping
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_choice, check_counts, check_positive
from probseq.gaussians import DiagonalGaussian
from probseq.precision import full_precision
from probseq.transformers.attention import AttentionCall, MultiHeadAttention, attention_kernel
from probseq.transformers.names import ATTENTION_JITTER, KernelName
from probseq.transformers.protocol import TokenMap
from sgpa.cache import ParameterCache
from sgpa.names import CovarianceName, InitialPosterior, KLWeighting, VariantName
from sgpa.posterior import (
    AttentionPosterior,
    HeadKernel,
    InducingTerms,
    attention_posterior,
    global_terms,
    relative_variance,
    residual_cholesky,
    residual_deviation,
)


class SparseGPAttention(MultiHeadAttention):
    r"""Multi-head self-attention whose heads are sparse Gaussian processes (thesis Eq. 3.15).

    Each head's output is a sample from a GP posterior: its mean is kernel attention corrected by M
    global inducing inputs that all sequences share, its variance comes from those alone. Cost
    O(B T² + B T M² + M³) a head in time, O(T) in memory for long sequences.

    Sampling with ``covariance="diag"`` (what the thesis does, B.5) draws each token on its own. The
    marginals are right, but whatever is pooled over tokens varies too little: noise that a real
    sample shares between tokens averages out. ``"full"`` draws tokens jointly, in O(T³).
    ``"inducing"`` (not in the thesis) draws the inducing outputs once a sequence, and each token's
    rest on its own: with :math:`w_t` a row of :math:`W = K_{qg} L^{-\top}`, in units of the prior,

    .. math::
        f_t = m_t + w_t \delta + \sqrt{1 - \|w_t\|^2}\, \epsilon_t, \quad
        \delta_d = R_d \epsilon'_d.

    The marginals are the same, tokens with similar queries deviate alike, and no token costs
    O(M²) for each output dimension.

    Differences from the thesis: the corrections of Eqs. 3.8, 3.10 and 3.18 do not touch what is
    computed here; :math:`S_g` is stored whitened, :math:`L R_d R_d^\top L^\top`, as in the authors'
    code; the global inducing inputs of a block go through exactly the map that its tokens went
    through, each head with its own rows of the projection.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: global inducing inputs M of each head.
        kernel: ``"rbf"`` (images) or ``"exponential"`` (text).
        variant: ``"orthogonal"`` (3.14, better) or ``"decoupled"`` (B.14, plain).
        covariance: ``"diag"``, ``"inducing"`` or ``"full"`` samples, see above.
        sample: ``False`` gives the posterior mean in place of samples, a control that tells what
            the noise does.
        kl_weighting: ``"sequence"``: each sequence pays the whole KL (the papers).
            ``"dataset"``: the global part is paid once for all ``num_data`` sequences.
        num_data: number of training sequences, needed for ``kl_weighting="dataset"``.
        initial_posterior: ``"random"`` draws v_g, R's strict lower triangle and the logarithm of
            its diagonal from N(0, 1) (the authors; tens of thousands of nats, for long training),
            ``"prior"`` starts where the global part of the KL divergence is zero.
        initial_variance: the prior variance σ_f² to start from; ``None`` for the authors': 1 for
            RBF, e^-4 for exponential. It is the power of the noise that training starts under.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.

    Example:
        >>> import torch
        >>> from sgpa import SparseGPAttention
        >>> attention = SparseGPAttention(64, num_heads=4, num_inducing=16)
        >>> values, kl = attention(torch.randn(8, 50, 64))
        >>> values.shape, kl.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        *,
        kernel: KernelName = "rbf",
        variant: VariantName = "orthogonal",
        covariance: CovarianceName = "diag",
        sample: bool = True,
        kl_weighting: KLWeighting = "sequence",
        num_data: int | None = None,
        initial_posterior: InitialPosterior = "random",
        initial_variance: float | None = None,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_choice("variant", variant, VariantName)
        check_choice("covariance", covariance, CovarianceName)
        check_choice("kl_weighting", kl_weighting, KLWeighting)
        check_choice("initial_posterior", initial_posterior, InitialPosterior)
        check_counts(num_inducing=num_inducing)
        if (kl_weighting == "dataset") != (num_data is not None):
            raise ValueError(
                "num_data, the number of training sequences, must be given with "
                f"kl_weighting='dataset' and only then, got kl_weighting={kl_weighting!r}, "
                f"num_data={num_data}"
            )
        if num_data is not None:
            check_counts(num_data=num_data)
        check_positive(jitter=jitter)
        self.num_inducing = num_inducing
        self.kernel_name: KernelName = kernel
        self.covariance: CovarianceName = covariance
        # Means alone: samples are equal, and an encoder copies them at its end.
        self.sample = self.stochastic = sample
        self.global_weight = 1.0 if num_data is None else 1.0 / num_data
        self.jitter = jitter
        width = dim // num_heads
        self.kernel = attention_kernel(kernel, width, num_heads, initial_variance=initial_variance)
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.inducing_inputs = nn.Parameter(torch.randn(num_heads, num_inducing, dim))
        initial = torch.randn if initial_posterior == "random" else torch.zeros
        # The plain variant has no inducing mean: an unused parameter would break distributed runs.
        self.inducing_mean = (
            nn.Parameter(initial(num_heads, num_inducing, width))
            if variant == "orthogonal"
            else None
        )
        raw = initial(num_heads, width, num_inducing, num_inducing)
        self.raw_inducing_factor = nn.Parameter(raw.tril())
        self._cache = ParameterCache[InducingTerms]()

    def train(self, mode: bool = True) -> "SparseGPAttention":
        """Set training or evaluation mode; either way the cache starts empty."""
        self._cache.clear()
        return super().train(mode)

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        queries, values = tokens
        terms = self._global_terms(call.token_map)
        posterior = attention_posterior(queries, values, self._head_kernel(), terms, call.mask)
        samples = self._sample(queries, posterior, terms, call)
        return samples, posterior.kl + self.global_weight * terms.kl

    def posterior(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        token_map: TokenMap | None = None,
    ) -> DiagonalGaussian:
        """Return the posterior marginals of the heads' outputs, before ``to_out`` mixes them.

        Tokens ``x`` are already normalised by the block, the mask is true at real ones, and the
        token map is that of :meth:`forward`; the Gaussian is ``(heads, batch, tokens, dim /
        heads)``.
        """
        queries, values = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            terms = self._global_terms(token_map)
            posterior = attention_posterior(queries, values, self._head_kernel(), terms, mask)
            variance = posterior.prior_deviation.square() * relative_variance(
                posterior.whitened, terms.factors
            )
            if bool(variance.isnan().any()):
                raise ValueError("x must be finite, got tokens whose posterior is not a number")
            return DiagonalGaussian(posterior.prior_deviation * posterior.mean, variance)

    def from_kernel(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its state with what symmetric kernel attention has; inducing variables stay."""
        return {**self.state_dict(), **weights}

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        queries, values = (
            full_precision(rearrange(linear(x), "b t (h d) -> h b t d", h=self.num_heads))
            for linear in (self.to_qk, self.to_v)
        )
        return queries, values

    def _head_kernel(self) -> HeadKernel:
        return HeadKernel(self.kernel_name, self.kernel.lengthscale, self.kernel.outputscale)

    def _global_terms(self, token_map: TokenMap | None) -> InducingTerms:
        """Return what depends on the global inducing inputs, computed once where it is cached."""
        mean, factor, weight = self.inducing_mean, self.raw_inducing_factor, self.to_qk.weight

        def compute() -> InducingTerms:
            inputs = self.inducing_inputs
            inputs = inputs if token_map is None else token_map(inputs)
            # k_g = G(Z_g) W_qk, each head with its own rows.
            rows = rearrange(weight, "(h k) d -> h k d", h=self.num_heads)
            inducing = einsum(inputs, rows, "h m d, h k d -> h m k")
            return global_terms(inducing, self._head_kernel(), mean, factor, jitter=self.jitter)

        def tensors() -> "list[Tensor] | None":  # torch 2.6 cannot trace the type itself
            inputs = [self.inducing_inputs, factor, weight, *self.kernel.parameters()]
            inputs += [] if mean is None else [mean]
            if token_map is None:
                return inputs
            # In training mode its dropout may be active, each time anew.
            return None if token_map.training else [*inputs, *token_map.parameters()]

        return self._cache.get(compute, tensors, fresh=self.training)

    def _sample(
        self,
        queries: Tensor,
        posterior: AttentionPosterior,
        terms: InducingTerms,
        call: AttentionCall,
    ) -> Tensor:
        """Draw heads' outputs (3.17) and lay them side by side, ``(S * batch, tokens, dim)``."""
        mean = posterior.mean
        if not self.sample:
            samples = mean.expand(call.num_samples or 1, *mean.shape)
        elif self.covariance == "diag":
            # m + √(1 − |w|² + |Rᵀw|²) ε, a token on its own.
            deviation = relative_variance(posterior.whitened, terms.factors).sqrt()
            samples = torch.addcmul(mean, deviation, call.noise(mean.shape, mean))
        else:
            # The part that the inducing inputs leave open: √(1 − |w|²) ε, or chol(K_qq − WWᵀ) ε.
            if self.covariance == "inducing":
                residual = residual_deviation(posterior.whitened) * call.noise(mean.shape, mean)
            else:
                kernel = self._head_kernel()
                root = residual_cholesky(queries, kernel, posterior, call.mask, jitter=self.jitter)
                residual = root @ call.noise(mean.shape, mean)
            # W R ε'.
            shape = (*mean.shape[:2], *terms.factors.shape[1:3])
            coefficients = call.noise(shape, mean)
            inducing = einsum(terms.factors, coefficients, "h c m n, s h b c n -> s h b m c")
            samples = mean + residual + posterior.whitened @ inducing
        samples = posterior.prior_deviation * samples
        return rearrange(samples, "s h b t c -> (s b) t (h c)")
