"""A sparse Gaussian process of the queries of attention, by which its output deviates.

Not in the papers. NaN and infinity in a tensor reach the result.
"""

import math

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_positive
from probseq.gaussians import gauss_kl, standard_normal
from probseq.kernels import RBF
from probseq.transformers.attention import full_precision
from probseq.transformers.names import ATTENTION_JITTER
from sgpa.cache import ParameterCache
from sgpa.posterior import (
    HeadKernel,
    InducingTerms,
    factor_from_raw,
    global_terms,
    relative_variance,
    residual_deviation,
    whiten,
)

# Of the variance of attention's output, where σ² starts.
_SHARE = 0.01


class QueryProcess(nn.Module):
    r"""A sparse GP over the space of each head's queries, with a value for each output dimension.

    With M inducing inputs z in the space of the queries q, which all sequences share, and d the
    width of a query:

    .. math::
        f_t &= \sigma g(q_t / d^{1/4}), \quad g_c \sim \mathrm{GP}(0, \mathrm{RBF}), \quad
        q(u_c) = N(L m_c, L R_c R_c^\top L^\top), \\
        g_c(q_t) &= w_t (m_c + R_c \epsilon'_c) + \sqrt{1 - |w_t|^2}\, \epsilon_{tc}, \quad
        w_t = k(q_t, z) L^{-\top}, \quad L L^\top = k(z, z)

    for each output dimension c. :math:`\epsilon'` is one draw a sequence, so that tokens with
    similar queries deviate alike; what the inducing inputs do not explain is drawn for each token
    on its own. The marginals are those of the process. Cost O(B T M²) a head.

    Args:
        num_heads: heads H.
        query_width: width d of a head's queries.
        value_width: width of a head's output.
        num_inducing: inducing inputs M of each head.
        initial_variance: σ², of all heads, to start from; ``None`` for a hundredth of the variance
            of the attention's output, where :meth:`place` is told that, else of 1.
        rho: start from R = ρI, with m = 0. 1 is the prior, where the KL divergence is 0 and the
            deviation has the same variance everywhere; .1 is small where the data are, at 1.8 nats
            for each inducing output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.

    Attributes:
        sample: ``False`` gives the mean σ w m in place of draws.

    Raises:
        ValueError: an argument is out of range.
    """

    stochastic = True

    def __init__(
        self,
        num_heads: int,
        query_width: int,
        value_width: int,
        num_inducing: int,
        *,
        initial_variance: float | None = None,
        rho: float = 1.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__()
        check_counts(
            num_heads=num_heads,
            query_width=query_width,
            value_width=value_width,
            num_inducing=num_inducing,
        )
        self.initial_variance = initial_variance
        if initial_variance is None:
            initial_variance = _SHARE
        check_positive(initial_variance=initial_variance, rho=rho, jitter=jitter)
        self.num_inducing, self.jitter, self.sample = num_inducing, jitter, True
        self.kernel = RBF(query_width, batch_shape=(num_heads,), outputscale=initial_variance)
        # Until `place` puts them where queries are.
        self.inducing_inputs = nn.Parameter(torch.randn(num_heads, num_inducing, query_width))
        # m and, with the logarithm of its diagonal, R.
        self.inducing_mean = nn.Parameter(torch.zeros(num_heads, num_inducing, value_width))
        raw = math.log(rho) * torch.eye(num_inducing)
        self.raw_inducing_factor = nn.Parameter(raw.repeat(num_heads, value_width, 1, 1))
        self._cache = ParameterCache[InducingTerms]()

    def forward(
        self,
        queries: Float[Tensor, "heads batch tokens query"],
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        inducing_noise: Float[Tensor, "samples heads batch value inducing"] | None = None,
        token_noise: Float[Tensor, "samples heads batch tokens value"] | None = None,
    ) -> Float[Tensor, "samples heads batch tokens value"]:
        """Draw the deviation.

        Args:
            queries: q, not scaled.
            num_samples: S draws for each sequence; ``None`` for one.
            generator: source of the draws.
            inducing_noise: ε', to draw the same function as another call did, see
                :meth:`inducing_noise`; ``None`` for a new one.
            token_noise: ε, likewise.

        Returns:
            Draws, in float32 or more.

        Raises:
            CholeskyError: the covariance of the inducing inputs cannot be factorised.
        """
        queries = full_precision(queries)
        with torch.autocast(queries.device.type, enabled=False):
            whitened, terms = self._whitened(queries)
            # w m.
            mean, samples = whitened @ self.inducing_mean[:, None], num_samples or 1
            if not self.sample:
                return (self.deviation * mean).expand(samples, *mean.shape)
            if inducing_noise is None:
                batch = queries.shape[1]
                inducing_noise = self.inducing_noise(samples, batch, generator=generator)
            # g = w m + w R ε' + √(1 − |w|²) ε.
            inducing = einsum(terms.factors, inducing_noise, "h c m n, s h b c n -> s h b m c")
            if token_noise is None:
                token_noise = standard_normal(
                    (samples, *mean.shape), like=mean, generator=generator
                )
            deviation = mean + whitened @ inducing + residual_deviation(whitened) * token_noise
            return self.deviation * deviation

    def inducing_noise(
        self, num_samples: int, batch: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "samples heads batch value inducing"]:
        """Draw ε', which decides the function that each sequence of a batch has."""
        heads, inducing, value = self.inducing_mean.shape
        shape = (num_samples, heads, batch, value, inducing)
        return standard_normal(shape, like=full_precision(self.inducing_mean), generator=generator)

    def moments(
        self, queries: Float[Tensor, "heads batch tokens query"]
    ) -> tuple[
        Float[Tensor, "heads batch tokens value"], Float[Tensor, "heads batch tokens value"]
    ]:
        """Return mean and variance of the deviation at each query.

        Args:
            queries: q, not scaled.
        """
        with torch.autocast(queries.device.type, enabled=False):
            whitened, terms = self._whitened(full_precision(queries))
            # σ w m and σ² (1 − |w|² + |Rᵀw|²).
            mean = self.deviation * (whitened @ self.inducing_mean[:, None])
            return mean, self.deviation.square() * relative_variance(whitened, terms.factors)

    def kl(self) -> Float[Tensor, ""]:
        r"""Return the KL divergence of the inducing outputs from their prior, in nats.

        It is a function of the parameters alone, over all heads:
        :math:`\tfrac12 \sum_c [|m_c|^2 + |R_c|^2 - 2 \log \det R_c - M]`.
        """
        factors = factor_from_raw(full_precision(self.raw_inducing_factor))
        return gauss_kl(full_precision(self.inducing_mean).mT, factors).sum()

    @property
    def deviation(self) -> Float[Tensor, "heads 1 1 1"]:
        """Prior standard deviation σ; zero, with no gradient, at a logarithm of -inf."""
        return (0.5 * full_precision(self.kernel.raw_outputscale)).exp()[:, None, None, None]

    @torch.no_grad()
    def set_deviation(self, deviation: float | Float[Tensor, " heads"]) -> None:
        """Set the prior standard deviation σ of all heads, or of each.

        Raises:
            ValueError: it is negative or not finite.
        """
        sigma = torch.as_tensor(deviation, dtype=torch.float64)
        if not bool(((sigma >= 0) & sigma.isfinite()).all()):
            raise ValueError(f"deviation must be finite and not negative, got {deviation}")
        self.kernel.raw_outputscale.copy_((2.0 * sigma.log()).expand(len(self.inducing_mean)))

    @torch.no_grad()
    def reset(self, *, deviation: float, rho: float) -> None:
        """Start again from m = 0, R = ρI and the prior standard deviation σ.

        Raises:
            ValueError: ρ is not positive, or σ negative or not finite.
        """
        check_positive(rho=rho)
        self.set_deviation(deviation)
        self.inducing_mean.zero_()
        raw = math.log(rho) * torch.eye(self.num_inducing)
        self.raw_inducing_factor.copy_(raw.expand_as(self.raw_inducing_factor))

    @torch.no_grad()
    def place(
        self,
        queries: Float[Tensor, "heads rows query"],
        *,
        variance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Put the inducing inputs on queries, and set the lengthscales and the variance.

        Each head has M of its queries, drawn at random, and one lengthscale,
        ℓ² = ½ median |q − q'|² over random pairs; σ² is a hundredth of the variance that the
        attention's output has, unless an initial variance was given.

        Args:
            queries: q of real tokens, not scaled.
            variance: of the attention's output over tokens, as of the heads' outputs.
            generator: source of the draws.

        Raises:
            ValueError: there are fewer than M queries or fewer than two, they are not finite, or
                most of them are equal.
        """
        queries = self._scaled(full_precision(queries))
        count, least = queries.shape[1], max(2, self.num_inducing)
        if count < least:
            raise ValueError(f"x must have at least {least} real tokens, got {count}")
        order = torch.randperm(count, generator=generator, device=queries.device)
        queries = queries[:, order]
        first, second = queries[:, : count // 2], queries[:, count // 2 : count // 2 * 2]
        median = (first - second).square().sum(-1).median(-1).values
        if not (bool(queries.isfinite().all()) and bool((median > 0).all())):
            raise ValueError("x must be finite tokens of which most differ from one another")
        self.inducing_inputs.copy_(queries[:, : self.num_inducing])
        self.kernel.raw_lengthscale.copy_((0.5 * median).sqrt().log()[:, None, None])
        if variance and self.initial_variance is None:
            self.set_deviation(math.sqrt(_SHARE * variance))

    @torch.no_grad()
    def unexplained(
        self,
        queries: Float[Tensor, "heads batch tokens query"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean share 1 − |w|² of the prior variance that inducing inputs leave open.

        It is near 0 where queries are like those that the inducing inputs were placed on, and 1 far
        from them: compare training data with new ones.

        Args:
            queries: q, not scaled.
            mask: true at real tokens.
        """
        whitened, _ = self._whitened(full_precision(queries))
        share = residual_deviation(whitened).square().squeeze(-1)
        return share.mean() if mask is None else share[:, mask].mean()

    def train(self, mode: bool = True) -> "QueryProcess":
        """Set training or evaluation mode; either way the cache starts empty."""
        self._cache.clear()
        return super().train(mode)

    def _scaled(self, queries: Tensor) -> Tensor:
        return queries / queries.shape[-1] ** 0.25

    def _whitened(self, queries: Tensor) -> tuple[Tensor, InducingTerms]:
        """Return w = C(q, z) chol(C(z, z) + jI)⁻ᵀ with C = k / σ², and R."""
        terms, lengthscale = self._terms(), full_precision(self.kernel.lengthscale)
        centred = self._scaled(queries) / lengthscale[:, None] - terms.centre[:, None]
        return whiten(centred, terms), terms

    def _terms(self) -> InducingTerms:
        def compute() -> InducingTerms:
            kernel = HeadKernel("rbf", self.kernel.lengthscale, self.kernel.outputscale)
            return global_terms(
                self.inducing_inputs, kernel, None, self.raw_inducing_factor, jitter=self.jitter
            )

        def tensors() -> "list[Tensor]":  # torch 2.6 cannot trace the type itself
            return [self.inducing_inputs, self.raw_inducing_factor, *self.kernel.parameters()]

        return self._cache.get(compute, tensors, fresh=self.training)
