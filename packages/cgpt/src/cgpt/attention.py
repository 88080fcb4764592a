"""Correlated Gaussian process attention (CGPT, section 3).

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cgpt.base import CorrelatedAttention
from cgpt.covariances import (
    JointCovariance,
    LatentCovariances,
    Scales,
    conditional_covariances,
    density_joint,
    exact_covariance,
    latent_covariances,
    predictive_joint,
)
from cgpt.names import CanonicalPrior, ConditionalName, RegulariserName, check_exact
from cgpt.posterior import draw_samples, predictive_covariance, predictive_mean
from cgpt.regulariser import jensen_bound, joint_log_density, marginals_log_density
from probseq.checks import check_choice, check_positive
from probseq.gaussians import JointGaussian
from probseq.precision import full_precision
from probseq.transformers.attention import AttentionCall, split_heads


class CorrelatedGPAttention(CorrelatedAttention):
    r"""Multi-head attention as the prediction of one Gaussian process from another (CGPT, Eq. 25).

    Queries and keys are two views of one canonical process, z_q(x) = σ_q z_o(x W_q) and
    z_k(x) = σ_k z_o(x W_k), so that attention may be asymmetric and still has a covariance:

    .. math::
        \nu = K_{qo} (K_o + \sigma^2 I)^{-1} K_{ok} X W_v, \qquad
        V = K_q - \sigma^2 G G^\top - G K_{ok} (K_k + \sigma^2 I)^{-1} K_{ko} G^\top,

    :math:`G = K_{qo} (K_o + \sigma^2 I)^{-1}`, with the latent inputs X_o a third projection of the
    tokens. V is shared by the output dimensions of a head. Training forwards ν (Alg. 1), evaluation
    draws from N(ν, V) jointly over tokens. The penalty is the negative log density of ν and of the
    keys' observations (Eq. 26), in nats a sequence, summed over heads and output dimensions: with
    continuous values it may be negative, and it is in the thousands for one CIFAR-10 layer.

    Cost O(T³) a head and sequence in time, O(T²) in memory: meant for T up to 512;
    ``SparseCorrelatedGPAttention`` is for more.

    Differences from the paper:

    - (z_q, z_k) is jointly Gaussian, so E[z_q | z_k] is known exactly: kernel attention
      :math:`\kappa(Q, K) V` (``conditional="exact"``). The paper's mean is a Nyström-type
      approximation of it through X_o, kept as the method.
    - Cross-covariances carry σ_q and σ_k, and the regulariser is exact; see
      :mod:`cgpt.covariances` and :mod:`cgpt.regulariser`.
    - The kernel has learned lengthscales for each head; see :mod:`cgpt.base`.
    - σ stays what it was set to: the density of the observations only grows as it shrinks. The
      paper gives none for CGPT; the authors' code has a jitter of 1e-7 in place of σ², at which
      factors in float32 hold little but round-off.
    - The authors' code draws samples in training too: ``sample_in_training=True``.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        noise: σ, standard deviation of the keys' observations and of the inducing values.
        conditional: ``"nystrom"`` (Eq. 22) or ``"exact"``, which has no X_o.
        regulariser: ``"joint"``: log p(ν, z_k); ``"marginals"``: log p(ν) + log p(z_k);
            ``"jensen"``: the paper's lower bound of the latter (not with the exact conditional).
        canonical_prior: ``"noise-free"``: p(z_o) = N(0, K_o) (the paper); ``"noisy"``:
            N(0, K_o + σ²I), which agrees with the σ² in Eq. 22.
        nugget: variance added to z_q in the regulariser, which is unbounded without.
        sample_in_training: draw samples in training too.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors; ``None`` for machine epsilon.

    Example:
        >>> import torch
        >>> from cgpt import CorrelatedGPAttention
        >>> attention = CorrelatedGPAttention(64, num_heads=4)
        >>> values, penalty = attention(torch.randn(8, 50, 64))
        >>> values.shape, penalty.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    first = "to_q"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        noise: float = 0.1,
        conditional: ConditionalName = "nystrom",
        regulariser: RegulariserName = "joint",
        canonical_prior: CanonicalPrior = "noise-free",
        nugget: float = 0.01,
        sample_in_training: bool = False,
        dropout: float = 0.0,
        jitter: float | None = None,
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            dropout,
            regulariser=regulariser,
            canonical_prior=canonical_prior,
            sample_in_training=sample_in_training,
        )
        check_choice("conditional", conditional, ConditionalName)
        check_positive(noise=noise, nugget=nugget)
        if jitter is not None:
            check_positive(jitter=jitter)
        if conditional == "exact":
            check_exact(regulariser, canonical_prior)
        self.noise, self.nugget, self.jitter = noise, nugget, jitter
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        # Unused parameters would break distributed runs.
        self.to_latent = nn.Linear(dim, dim, bias=False) if conditional == "nystrom" else None
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        (queries, keys, latent_inputs, values), mask = tokens, call.mask
        # ν = K_qo A K_ok V (Eq. 25).
        joint, latent = self._covariances(queries, keys, latent_inputs, mask)
        mean = predictive_mean(joint, values)
        penalty = -self._log_density(joint, latent, mean, values, mask).sum(-1).mean()
        num_samples = call.num_samples or 1
        samples = mean.expand(num_samples, *mean.shape)
        if not self.training or self.sample_in_training:
            samples = draw_samples(
                mean,
                predictive_covariance(joint, mask, jitter=self.jitter),
                mask,
                num_samples=num_samples,
                prior_variance=self.query_scale.square(),
                jitter=self.jitter,
                generator=call.generator,
            )
        return rearrange(samples, "s b h t c -> (s b) t (h c)"), penalty

    def posterior(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> JointGaussian:
        """Return the predictive distribution of the heads' outputs, before ``to_out`` mixes them.

        Tokens ``x`` are already normalised by the block; mean and covariance are zero at padding.
        The Gaussian over tokens is ``(batch, heads, dim / heads, tokens)``; the output dimensions
        of a head are independent and share their covariance.
        """
        queries, keys, latent_inputs, values = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            joint, _ = self._covariances(queries, keys, latent_inputs, mask)
            mean = predictive_mean(joint, values).mT
            covariance = predictive_covariance(joint, mask, jitter=self.jitter)
        return JointGaussian(mean, covariance[:, :, None].expand(*mean.shape, mean.shape[-1]))

    def from_kernel(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its state with that of asymmetric kernel attention; latent inputs stay."""
        if self.to_latent is None:
            raise ValueError("conditional must be nystrom to start from kernel attention")
        return {**self.state_dict(), **self.convert_kernel(weights)}

    def _project(
        self, x: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return queries, keys and latents over the lengthscale, and values, ``(B, H, T, s)``."""
        layers = [self.to_q, self.to_k, self.to_v]
        if self.to_latent is not None:
            layers.append(self.to_latent)
        if mask is not None:
            # Filled before the weights see it, and not multiplied: padding may hold anything.
            x = x.masked_fill(~mask[..., None], 0.0)
        tokens = [full_precision(p) for p in split_heads((f(x) for f in layers), self.num_heads)]
        queries, keys, values, *latent_inputs = tokens
        inverse = self.lengthscale.reciprocal()
        latent = latent_inputs[0] * inverse if latent_inputs else None
        return queries * inverse, keys * inverse, latent, values

    def _covariances(
        self, queries: Tensor, keys: Tensor, latent_inputs: Tensor | None, mask: Tensor | None
    ) -> tuple[JointCovariance, LatentCovariances | None]:
        """Predictive joint covariance, and what it was made of."""
        scales = Scales(self.raw_query_scale, self.raw_key_scale, self.noise)
        if latent_inputs is None:
            return exact_covariance(queries, keys, scales, mask), None
        latent = latent_covariances(
            queries,
            keys,
            latent_inputs,
            scales,
            mask,
            canonical_prior=self.canonical_prior,
            jitter=self.jitter,
        )
        return predictive_joint(latent), latent

    def _log_density(
        self,
        predictive: JointCovariance,
        latent: LatentCovariances | None,
        mean: Tensor,
        values: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Log density of the attention output and the observations, ``(B, H)``."""
        # Z = (K_k + σ²I) V (Alg. 1, line 1): zero at padding, where V is.
        observations = predictive.keys @ values
        joint = predictive if latent is None else density_joint(latent, predictive)
        if self.regulariser == "jensen" and latent is not None:
            return jensen_bound(
                joint,
                conditional_covariances(latent),
                mean,
                observations,
                mask,
                nugget=self.nugget,
                jitter=self.jitter,
            )
        density = joint_log_density if self.regulariser == "joint" else marginals_log_density
        return density(joint, mean, observations, mask, nugget=self.nugget, jitter=self.jitter)
