"""Sparse correlated Gaussian process attention as a module (CGPT paper, section 4).

NaN and infinity in a tensor reach the result.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cgpt.base import CorrelatedAttention
from cgpt.inducing import FreeInducingInputs, MixedInducingInputs
from cgpt.names import CanonicalPrior, InducingName, RegulariserName, SparseConditional
from cgpt.sparse import (
    SparseFeatures,
    SparsePosterior,
    covariance_root,
    predictive_variance,
    row_noise,
    sparse_features,
    sparse_posterior,
)
from cgpt.sparse_regulariser import log_density
from probseq.checks import check_choice, check_counts, check_positive
from probseq.gaussians import DiagonalGaussian
from probseq.precision import full_precision
from probseq.transformers.attention import AttentionCall
from probseq.transformers.names import ATTENTION_JITTER
from probseq.transformers.sampling import repeat_samples


class SparseCorrelatedGPAttention(CorrelatedAttention):
    r"""Multi-head attention between two correlated GPs, through inducing inputs (SCGPT).

    Queries, keys and canonical inputs are three projections of the tokens, so that attention is not
    symmetric, and z_k = X W_v are the values. The output is the prediction of z_q: in training its
    mean (the paper's Algorithm 1), in evaluation a sample from N(ν, V), drawn jointly for all
    tokens in O(T m). The penalty is minus the log-density of mean and values under the prior.

    Time O(T m²) a head and sequence, but for the penalty's exact K_oo, which is summed in tiles:
    O(T² m). Memory is O(T m) throughout.

    The kernel has learned lengthscales for each head, which the paper's has not; see
    :mod:`cgpt.base`.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        num_inducing: inducing inputs m between queries and canonical inputs.
        num_key_inducing: inducing inputs l between canonical inputs and keys; ``None``: as many.
        noise: standard deviation σ; the paper's are 0.1 (CIFAR-10) and 0.5 (CoLA).
        conditional: ``"sor"`` (the paper), whose variance falls to σ² far from the inducing inputs,
            or ``"fitc"``, whose variance goes back to the prior's; see
            :func:`cgpt.sparse.row_noise`.
        regulariser: ``"joint"`` density, ``"marginals"``, or their bound ``"jensen"`` (the paper);
            see :func:`cgpt.sparse_regulariser.log_density`.
        canonical_prior: covariance of z_o in the regulariser, ``"noise-free"`` K_oo (the paper) or
            ``"noisy"`` K_oo + σ²I.
        inducing: ``"free"`` parameters (the paper), or ``"mixed"`` from the tokens (the authors'
            code): of fixed length and not permutation equivariant.
        max_tokens: longest sequence; needed by ``inducing="mixed"`` and by nothing else.
        sample_in_training: draw samples in training too.
        dropout: rate on the output.
        jitter: relative jitter of the inducing inputs' Cholesky factors, the same in all dtypes.

    Example:
        >>> import torch
        >>> from cgpt import SparseCorrelatedGPAttention
        >>> attention = SparseCorrelatedGPAttention(64, num_heads=4, num_inducing=16)
        >>> values, penalty = attention(torch.randn(8, 50, 64))
        >>> values.shape, penalty.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    first = "to_qokv"
    raw_noise: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        *,
        num_key_inducing: int | None = None,
        noise: float = 0.1,
        conditional: SparseConditional = "sor",
        regulariser: RegulariserName = "joint",
        canonical_prior: CanonicalPrior = "noise-free",
        inducing: InducingName = "free",
        max_tokens: int | None = None,
        sample_in_training: bool = False,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            dropout,
            regulariser=regulariser,
            canonical_prior=canonical_prior,
            sample_in_training=sample_in_training,
        )
        check_choice("conditional", conditional, SparseConditional)
        check_choice("inducing", inducing, InducingName)
        num_key_inducing = num_inducing if num_key_inducing is None else num_key_inducing
        check_counts(num_inducing=num_inducing, num_key_inducing=num_key_inducing)
        check_positive(noise=noise, jitter=jitter)
        if (inducing == "mixed") != (max_tokens is not None):
            raise ValueError(
                "max_tokens, the longest sequence, must be given with inducing='mixed' and only "
                f"then, got inducing={inducing!r}, max_tokens={max_tokens}"
            )
        self.conditional: SparseConditional = conditional
        self.jitter = jitter
        width = dim // num_heads
        self.to_qokv = nn.Linear(dim, 4 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.inducing, self.key_inducing = (
            FreeInducingInputs(num_heads, count, width)
            if max_tokens is None
            else MixedInducingInputs(num_heads, count, width, max_tokens)
            for count in (num_inducing, num_key_inducing)
        )
        self.register_buffer("raw_noise", torch.full((num_heads,), math.log(noise)))

    @property
    def noise(self) -> Float[Tensor, " heads"]:
        """σ, the standard deviation of the noise."""
        return self.raw_noise.exp()

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        prediction = self._predict(tokens, call.mask)
        penalty = -self._log_density(prediction, call.mask).sum(0).mean()
        if not self.training or self.sample_in_training:
            return self._sample(prediction, call), penalty
        out = prediction.features.queries @ prediction.posterior.coefficients
        out = rearrange(out, "h b t d -> b t (h d)")
        return out if call.num_samples is None else repeat_samples(out, call.num_samples), penalty

    def posterior(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> DiagonalGaussian:
        """Return the marginals of the heads' predictions, before ``to_out`` mixes them.

        Tokens ``x`` are already normalised by the block, the mask is true at real ones; the
        Gaussian is ``(heads, batch, tokens, dim / heads)``.
        """
        inputs = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            _, features, posterior, noise = self._predict(inputs, mask)
            root = covariance_root(posterior, self.noise.square())
            mean = features.queries @ posterior.coefficients
            variance = predictive_variance(features, root, noise)
            return DiagonalGaussian(mean, variance.expand(mean.shape))

    def from_kernel(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its state with that of asymmetric kernel attention; inducing inputs stay."""
        converted = self.convert_kernel(weights)
        queries, keys, values = (converted.pop(f"to_{name}.weight") for name in ("q", "k", "v"))
        latent = self.to_qokv.weight.detach().chunk(4)[1]
        stacked = torch.cat([queries, latent, keys, values])
        return {**self.state_dict(), **converted, "to_qokv.weight": stacked}

    def _project(self, x: Tensor, mask: Tensor | None) -> "_Inputs":
        """Project tokens and divide by the lengthscales, with the origin amid inducing inputs.

        The scale goes into the weights, not over the tokens.
        """
        if mask is not None:
            # Filled, not multiplied: padding may hold anything.
            x = x.masked_fill(~mask[..., None], 0.0)
        inverse = self.lengthscale.reciprocal()
        scales = torch.cat([inverse.flatten()] * 3 + [torch.ones_like(inverse).flatten()])
        centres = torch.stack([self.inducing.centre(), self.key_inducing.centre()])
        origin = (centres.mean(0) * inverse).detach()
        tokens = F.linear(x, scales[:, None] * self.to_qokv.weight)
        tokens = rearrange(tokens, "b t (four h w) -> four h b t w", four=4, h=self.num_heads)
        *inputs, values = full_precision(tokens)
        with torch.autocast(x.device.type, enabled=False):
            queries, canonical, keys = (each - origin[:, None] for each in inputs)
            inducing, key_inducing = (
                make(canonical, inverse, origin, mask)
                for make in (self.inducing, self.key_inducing)
            )
        return _Inputs(queries, canonical, keys, values, inducing, key_inducing)

    def _predict(self, inputs: "_Inputs", mask: Tensor | None) -> "_Prediction":
        features = sparse_features(
            inputs.queries,
            inputs.canonical,
            inputs.keys,
            inputs.inducing,
            inputs.key_inducing,
            self.query_scale,
            self.key_scale,
            mask,
            jitter=self.jitter,
        )
        noise_variance = self.noise.square()
        posterior = sparse_posterior(features, inputs.values, noise_variance)
        noise = row_noise(features.queries, self.query_scale, noise_variance, self.conditional)
        return _Prediction(inputs, features, posterior, noise)

    def _log_density(self, prediction: "_Prediction", mask: Tensor | None) -> Tensor:
        inputs, features, posterior, noise = prediction
        noise_variance = self.noise.square()
        key_noise = row_noise(features.keys, self.key_scale, noise_variance, self.conditional)
        return log_density(
            inputs.canonical,
            features,
            posterior,
            inputs.values,
            (noise, key_noise),
            noise_variance,
            mask,
            regulariser=self.regulariser,
            canonical_prior=self.canonical_prior,
        )

    def _sample(self, prediction: "_Prediction", call: AttentionCall) -> Tensor:
        """Draw ν + √noise ε₁ + W_q root ε₂, jointly over tokens."""
        inputs, features, posterior, noise = prediction
        root = covariance_root(posterior, self.noise.square())
        coefficients = posterior.coefficients
        coefficients = coefficients + root @ call.noise(coefficients.shape, root)
        fresh = call.noise(inputs.values.shape, root)
        samples = features.queries @ coefficients + noise.sqrt() * fresh
        return rearrange(samples, "s h b t d -> (s b) t (h d)")


class _Inputs(NamedTuple):
    """Projected tokens and inducing inputs, over the lengthscales and minus one origin."""

    queries: Tensor
    canonical: Tensor
    keys: Tensor
    values: Tensor
    inducing: Tensor
    key_inducing: Tensor


class _Prediction(NamedTuple):
    inputs: _Inputs
    features: SparseFeatures
    posterior: SparsePosterior
    noise: Tensor
