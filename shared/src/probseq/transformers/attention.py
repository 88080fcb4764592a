"""Attention without uncertainty: softmax attention and kernel attention as plain modules.

NaN and infinity in a tensor reach the result.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import (
    check_choice,
    check_counts,
    check_not_negative,
    check_positive,
    check_rates,
)
from probseq.gaussians import standard_normal
from probseq.kernels import RBF, Exponential
from probseq.precision import full_precision
from probseq.transformers.functional import kernel_attention
from probseq.transformers.names import KernelName
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples, check_tokens
from probseq.transformers.sampling import repeat_samples


class AttentionCall(NamedTuple):
    """Arguments of a forward pass beside the tokens, see ``AttentionModule``."""

    mask: Tensor | None
    token_map: TokenMap | None
    num_samples: int | None
    generator: torch.Generator | None

    def noise(self, shape: Iterable[int], like: Tensor) -> Tensor:
        """Draw standard normal numbers of a shape, for each sample: (S, *shape)."""
        samples = self.num_samples or 1
        return standard_normal((samples, *shape), like=like, generator=self.generator)


class MultiHeadAttention(nn.Module):
    """Base of attention modules: checks, precision, and the projection behind the heads.

    A subclass makes its projections, the last of them ``to_out``, and writes ``_project`` and
    ``_attend``.
    """

    stochastic: bool = True  # whether a forward pass draws
    takes_half: bool = False  # whether parameters may be in half precision
    first: str = "to_qk"  # name of the projection that the tokens meet first
    to_out: nn.Module

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_rates(dropout=dropout)
        self.dim, self.num_heads = dim, num_heads

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        token_map: TokenMap | None = None,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> AttentionOutput:
        """Attend, or draw what attention gives; see the class.

        Arguments are those of :class:`~probseq.transformers.protocol.AttentionModule`.

        Returns:
            Values, ``(batch, tokens, dim)`` or ``(S * batch, tokens, dim)``, and the penalty in
            nats a sequence.

        Raises:
            CholeskyError: a covariance cannot be factorised.
        """
        check_num_samples(num_samples)
        tokens = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            call = AttentionCall(mask, token_map, num_samples, generator)
            out, penalty = self._attend(tokens, call)
        return AttentionOutput(self.to_out(out), penalty)

    def project(self, x: Tensor, mask: Tensor | None) -> Any:
        """Check tokens and mask, and return the tokens' projections."""
        weight = getattr(getattr(self, self.first), "weight", x)
        check_tokens(x, mask, self.dim, weight, half=self.takes_half)
        return self._project(x, mask)

    def _project(self, x: Tensor, mask: Tensor | None) -> Any:
        """Return what ``_attend`` takes, in the precision that it needs."""
        raise NotImplementedError

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs side by side, ``(S * batch, tokens, ...)``, and the penalty."""
        raise NotImplementedError


class SoftmaxAttention(MultiHeadAttention):
    r"""Softmax attention :math:`\mathrm{softmax}(q k^\top / \sqrt d) v` (thesis Eq. 3.1).

    With ``num_keys`` tokens attend to so many learned keys :math:`k'` of each head, whose values
    are what learned queries :math:`q'` find in the sequence, :math:`\mathrm{softmax}(q k'^\top /
    \sqrt d)\, \mathrm{softmax}(q' k^\top / \sqrt d) v` (Lee et al. 2019, Eq. 9, without its MLPs):
    the bottleneck of sparse Gaussian process attention without a kernel.

    It works in half precision too.
    """

    stochastic, takes_half, first = False, True, "to_qkv"

    def __init__(
        self, dim: int, num_heads: int, num_keys: int | None = None, *, dropout: float = 0.0
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.learned: nn.Parameter | None = None
        if num_keys is not None:
            check_counts(num_keys=num_keys)
            # q' and k', of the variance 1/3 that projections of normalised tokens start with.
            shape = (2, 1, num_heads, num_keys, dim // num_heads)
            self.learned = nn.Parameter(torch.randn(shape) / math.sqrt(3.0))

    def _project(self, x: Tensor, mask: Tensor | None) -> list[Tensor]:
        return split_heads(self.to_qkv(x).chunk(3, -1), self.num_heads)

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        allowed = None
        if call.mask is not None:
            # What could attend to padding alone attends to all: finite, and never looked at.
            allowed = call.mask[:, None, None, :]
            allowed = allowed | ~allowed.any(-1, keepdim=True)
        q, k, v = tokens
        if self.learned is not None:
            queries, keys = self.learned.to(v.dtype).expand(-1, v.shape[0], -1, -1, -1)
            v = F.scaled_dot_product_attention(queries, k, v, attn_mask=allowed)
            k, allowed = keys, None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return rearrange(out, "b h t d -> b t (h d)"), out.new_zeros(())


class KernelAttention(MultiHeadAttention):
    r"""Kernel attention :math:`F_h = K_{qk} v` (Tsai et al. 2019; thesis Eq. 3.2), not normalised.

    Args:
        dim: token width.
        num_heads: heads; must divide ``dim``. Each has its own kernel.
        kernel: ``"rbf"``, :math:`\sigma^2 \exp(-\tfrac12 \sum_j (q_j - k_j)^2 / \ell_j^2)`, or
            ``"exponential"``, :math:`\sigma^2 \exp(\sum_j q_j k_j / \ell_j^2)`.
        symmetric: queries and keys share their projection, which makes the kernel of two tokens a
            symmetric function of them (what SGPA needs).
        initial_variance: σ² to start from; ``None``: 1 for RBF, e^-4 for exponential.
        noise: standard deviation of Gaussian noise that is added to the heads' outputs in training
            and in prediction: what a Gaussian process adds, without the process.
        dropout: rate on the output.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: KernelName = "rbf",
        symmetric: bool = True,
        initial_variance: float | None = None,
        noise: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_not_negative(noise=noise)
        self.noise, self.stochastic = noise, noise > 0.0
        self.kernel_name: KernelName = kernel
        self.kernel = attention_kernel(
            kernel, dim // num_heads, num_heads, initial_variance=initial_variance
        )
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_k = None if symmetric else nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, v = map(full_precision, split_heads((self.to_qk(x), self.to_v(x)), self.num_heads))
        if self.to_k is None:
            return q, q, v
        return q, full_precision(split_heads((self.to_k(x),), self.num_heads)[0]), v

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        q, k, v = tokens
        inverse_lengthscale = self.kernel.lengthscale.reciprocal()
        queries = q * inverse_lengthscale
        keys = queries if k is q else k * inverse_lengthscale
        key_mask = None if call.mask is None else call.mask[:, None]
        out = kernel_attention(queries, keys, v, kernel=self.kernel_name, key_mask=key_mask)
        out = out * self.kernel.outputscale[:, None, None]
        if self.stochastic:
            out = out if call.num_samples is None else repeat_samples(out, call.num_samples)
            # Where SGPA adds the deviation of its posterior, this adds a constant.
            out = out + self.noise * standard_normal(out.shape, like=out, generator=call.generator)
        return rearrange(out, "b h t d -> b t (h d)"), out.new_zeros(())


def attention_kernel(
    name: KernelName, dim: int, num_heads: int, *, initial_variance: float | None = None
) -> RBF | Exponential:
    """Kernel with its own lengthscales for each head, initialised as SGPA's authors do.

    RBF: log lengthscales from N(0, 1), variance 1. Exponential: log lengthscales from N(4, 1),
    variance e^-4; or another variance σ_f² to start from.
    """
    check_choice("kernel", name, KernelName)
    if initial_variance is not None:
        check_positive(initial_variance=initial_variance)
    kernel, log_mean, variance = (
        (RBF, 0.0, 1.0) if name == "rbf" else (Exponential, 4.0, math.exp(-4.0))
    )
    return kernel(
        dim,
        batch_shape=(num_heads,),
        lengthscale=(torch.randn(num_heads, 1, dim) + log_mean).exp(),
        outputscale=variance if initial_variance is None else initial_variance,
    )


def split_heads(projections: Iterable[Tensor], num_heads: int) -> list[Tensor]:
    """Split the last axis of each projection into heads: ``(b, t, h * d)`` to ``(b, h, t, d)``."""
    return [rearrange(x, "b t (h d) -> b h t d", h=num_heads) for x in projections]


def check_heads(dim: int, num_heads: int) -> None:
    """Refuse widths below 1 and head counts that don't divide the width."""
    check_counts(dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"num_heads must divide dim={dim}, got num_heads={num_heads}")
