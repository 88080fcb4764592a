"""A sparse Gaussian process of the queries of attention, by which its output deviates.

Not in the papers.
"""

import math

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_positive
from probseq.gaussians import gauss_kl, standard_normal
from probseq.kernels import RBF
from probseq.transformers.attention import full_precision
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

    With M inducing inputs z in the space of the queries q, which all sequences share, and s the
    width of a query:

    .. math::
        f_t &= \sigma g(q_t / s^{1/4}), \quad g_c \sim \mathrm{GP}(0, \mathrm{RBF}), \quad
        q(u_c) = N(L m_c, L R_c R_c^\top L^\top), \\
        g_c(q_t) &= w_t (m_c + R_c \epsilon'_c) + \sqrt{1 - |w_t|^2}\, \epsilon_{tc}, \quad
        w_t = k(q_t, z) L^{-\top}, \quad L L^\top = k(z, z)

    for each output dimension c. :math:`\epsilon'` is one draw a sequence, so that tokens with
    similar queries deviate alike; what the inducing inputs leave open is drawn for each token on
    its own. The marginals are those of the process. Cost O(B T M²) a head. Arguments are those of
    :class:`~sgpa.beyond.residual.ResidualSparseGPAttention`.
    """

    def __init__(
        self,
        num_heads: int,
        width: int,
        num_inducing: int,
        *,
        initial_variance: float | None,
        rho: float,
        jitter: float,
    ) -> None:
        super().__init__()
        check_counts(num_inducing=num_inducing)
        self.initial_variance = initial_variance
        if initial_variance is None:
            initial_variance = _SHARE
        check_positive(initial_variance=initial_variance, rho=rho, jitter=jitter)
        self.num_inducing, self.jitter = num_inducing, jitter
        self.kernel = RBF(width, batch_shape=(num_heads,), outputscale=initial_variance)
        # Until `initialise` puts them where queries are.
        self.inducing_inputs = nn.Parameter(torch.randn(num_heads, num_inducing, width))
        # m and, with the logarithm of its diagonal, R.
        self.inducing_mean = nn.Parameter(torch.zeros(num_heads, num_inducing, width))
        raw = math.log(rho) * torch.eye(num_inducing)
        self.raw_inducing_factor = nn.Parameter(raw.repeat(num_heads, width, 1, 1))
        self._cache = ParameterCache[InducingTerms]()

    def forward(
        self,
        queries: Float[Tensor, "heads batch tokens width"],
        *,
        num_samples: int,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "samples heads batch tokens width"]:
        """Draw the deviation at queries that are not scaled.

        Raises:
            CholeskyError: the covariance of the inducing inputs cannot be factorised.
        """
        whitened, terms = self._whitened(queries)
        # w m.
        mean = whitened @ self.inducing_mean[:, None]
        # w R ε'.
        shape = (num_samples, *mean.shape[:2], *terms.factors.shape[1:3])
        noise = standard_normal(shape, like=mean, generator=generator)
        inducing = einsum(terms.factors, noise, "h c m n, s h b c n -> s h b m c")
        # √(1 − |w|²) ε.
        noise = standard_normal((num_samples, *mean.shape), like=mean, generator=generator)
        return self.deviation * (mean + whitened @ inducing + residual_deviation(whitened) * noise)

    def moments(
        self, queries: Float[Tensor, "heads batch tokens width"]
    ) -> tuple[
        Float[Tensor, "heads batch tokens width"], Float[Tensor, "heads batch tokens width"]
    ]:
        """Return mean and variance of the deviation at queries that are not scaled."""
        whitened, terms = self._whitened(queries)
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
    def initialise(
        self,
        queries: Float[Tensor, "heads rows width"],
        variance: float,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Put the inducing inputs on queries of real tokens, and set lengthscales and variance.

        As :meth:`~sgpa.beyond.residual.ResidualSparseGPAttention.initialise_inducing` says;
        ``variance`` is that of the attention's output over tokens.
        """
        queries = self._scaled(full_precision(queries))
        count, least = queries.shape[1], max(2, self.num_inducing)
        if count < least:
            raise ValueError(f"x must have at least {least} real tokens, got {count}")
        order = torch.randperm(count, generator=generator, device=queries.device)
        queries = queries[:, order]
        # ℓ² = ½ median |q − q'|² over random pairs.
        first, second = queries[:, : count // 2], queries[:, count // 2 : count // 2 * 2]
        median = (first - second).square().sum(-1).median(-1).values
        if not (bool(queries.isfinite().all()) and bool((median > 0).all())):
            raise ValueError("x must be finite tokens of which most differ from one another")
        self.inducing_inputs.copy_(queries[:, : self.num_inducing])
        self.kernel.raw_lengthscale.copy_((0.5 * median).sqrt().log()[:, None, None])
        if variance and self.initial_variance is None:
            sigma = torch.tensor(math.sqrt(_SHARE * variance), dtype=torch.float64)
            self.kernel.raw_outputscale.copy_((2.0 * sigma.log()).expand(len(self.inducing_mean)))

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
