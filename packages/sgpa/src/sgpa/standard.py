"""Standard sparse Gaussian process attention (thesis section 3.2.2), kept as a baseline.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from probseq.checks import check_choice, check_counts, check_positive
from probseq.gaussians import gauss_kl
from probseq.linalg import safe_cholesky
from probseq.precision import full_precision
from probseq.transformers.attention import AttentionCall, MultiHeadAttention, attention_kernel
from probseq.transformers.functional import kernel_attention
from probseq.transformers.names import ATTENTION_JITTER, KernelName
from sgpa.names import StandardCovariance
from sgpa.posterior import HeadKernel, correlation_matrix, factor_from_raw, prior_scale


class StandardSparseGPAttention(MultiHeadAttention):
    r"""Attention as an SVGP whose inducing inputs are the sequence's own keys (thesis Eq. 3.4).

    With q = k the posterior is :math:`m_d = K_{qq} v_d`, :math:`\Sigma = S`, and S must follow the
    sequence: row t of the Cholesky factor is a linear function of token t,
    :math:`R_{t,1..t} = x_t W_s` with the diagonal exponentiated, :math:`S = L R R^\top L^\top`,
    :math:`L = \mathrm{chol}(K_{qq})`, tied over output dimensions. (The thesis writes the factor of
    S itself as :math:`x W_s`; whitened, the KL divergence needs no inverse of K.) Column t' of R
    belongs to position t', so the layer has a longest length and is not permutation equivariant.

    There are no inducing inputs that sequences share, and so neither ``covariance="inducing"`` nor
    random features.

    O(T³) in time and O(T²) in memory and parameters: kept for comparison with
    :class:`~sgpa.attention.SparseGPAttention`; the thesis finds that it underfits (Table B.1).

    Args:
        dim: token width.
        num_heads: heads; must divide ``dim``.
        max_tokens: longest sequence.
        kernel: ``"rbf"`` or ``"exponential"``.
        covariance: ``"diag"`` samples tokens independently, ``"full"`` jointly.
        initial_variance: prior variance to start from; ``None``: 1 for RBF, e^-4 for exponential.
        dropout: rate on the output.
        jitter: relative jitter of Cholesky factors, the same in all dtypes.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_tokens: int,
        *,
        kernel: KernelName = "rbf",
        covariance: StandardCovariance = "diag",
        initial_variance: float | None = None,
        dropout: float = 0.0,
        jitter: float = ATTENTION_JITTER,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_choice("covariance", covariance, StandardCovariance)
        check_counts(max_tokens=max_tokens)
        check_positive(jitter=jitter)
        self.max_tokens = max_tokens
        self.kernel_name: KernelName = kernel
        self.covariance: StandardCovariance = covariance
        self.jitter = jitter
        self.kernel = attention_kernel(
            kernel, dim // num_heads, num_heads, initial_variance=initial_variance
        )
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_factor = nn.Linear(dim, num_heads * max_tokens, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def from_kernel(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its state with what symmetric kernel attention has; the covariance stays."""
        return {**self.state_dict(), **weights}

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        tokens = x.shape[1]
        if tokens > self.max_tokens:
            raise ValueError(
                f"x must have at most max_tokens={self.max_tokens} tokens, got {tokens}"
            )
        queries, values, raw = (
            full_precision(rearrange(linear(x), "b t (h d) -> h b t d", h=self.num_heads))
            for linear in (self.to_qk, self.to_v, self.to_factor)
        )
        return queries, values, raw[..., :tokens].tril()

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        (queries, values, raw), mask = tokens, call.mask
        batch, length = queries.shape[1:3]
        kernel = HeadKernel(self.kernel_name, self.kernel.lengthscale, self.kernel.outputscale)
        scaled = queries / kernel.lengthscale[:, None]
        correlation = correlation_matrix(scaled)
        if mask is not None:
            # Padding: independent of all else, at the prior, without a value.
            real = (mask[:, :, None] & mask[:, None, :])[None]
            eye = torch.eye(length, dtype=raw.dtype, device=raw.device)
            correlation = torch.where(real, correlation, eye)
            raw = raw.masked_fill(~real, 0.0)
            values = values.masked_fill(~mask[None, :, :, None], 0.0)
        # K_qq = D C D and L = D chol(C + jI), with D the prior standard deviations.
        scale = prior_scale(scaled, kernel)
        cholesky = safe_cholesky(correlation, jitter=self.jitter)
        # L R.
        factor = factor_from_raw(raw)
        root = scale * (cholesky @ factor)
        # m = K_qq v = D C D v.
        relative_mean = kernel_attention(
            scaled,
            scaled,
            scale * values,
            kernel="rbf",
            key_mask=None if mask is None else mask[None],
        )
        if mask is not None:
            relative_mean = relative_mean.masked_fill(~mask[None, :, :, None], 0.0)
        mean = scale * relative_mean
        # B.5 with m and S whitened: Σ_d KL[N(L⁻¹ m_d, R Rᵀ) ‖ N(0, I)], a mean over the batch.
        whitened = torch.linalg.solve_triangular(cholesky, relative_mean, upper=False)
        penalty = gauss_kl(whitened.mT, factor[:, :, None]).sum() / batch
        noise = call.noise(mean.shape, like=mean)
        if self.covariance == "diag":
            samples = mean + root.square().sum(-1, keepdim=True).sqrt() * noise
        else:
            samples = mean + root @ noise
        return rearrange(samples, "s h b t c -> (s b) t (h c)"), penalty
