"""Attention of decoders: each token attends to itself and to what came before it. Experimental.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_choice, check_counts
from probseq.transformers.attention import (
    KernelAttention,
    SoftmaxAttention,
    full_precision,
    softmax_attention,
    split_heads,
)
from probseq.transformers.functional import rbf_matrix
from probseq.transformers.names import KernelName
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import AttentionModule, TokenMap

NormaliserName = Literal["none", "count", "kernel"]
# Rows of a kernel matrix that are there at the same time.
_BLOCK = 256


class CausalAttentionModule(AttentionModule, Protocol):
    """What a decoder asks of an attention module beside what every backbone does."""

    def init_cache(
        self, batch: int, max_tokens: int, *, generator: torch.Generator | None = None
    ) -> Any:
        """Return what is known before the first token; random layers draw all of their noise."""
        ...

    def step(
        self,
        x: Float[Tensor, "batch new dim"],
        cache: Any,
        *,
        token_map: TokenMap | None = None,
    ) -> tuple[AttentionOutput, Any]:
        """Attend from the next tokens, without gradients; the old cache is used up."""
        ...


class KeyValueCache(NamedTuple):
    """Keys and values of the tokens so far, in room for more."""

    keys: Float[Tensor, "batch heads max_tokens dim"]  # ``(batch, heads, max_tokens, width)``
    values: Float[Tensor, "batch heads max_tokens channels"]  # likewise
    length: int  # number t of tokens

    @classmethod
    def empty(
        cls, batch: int, heads: int, max_tokens: int, width: int, like: Tensor
    ) -> "KeyValueCache":
        """Return a cache without tokens, in the dtype and on the device of ``like``."""
        check_counts(batch=batch, max_tokens=max_tokens)
        keys, values = (like.new_zeros(batch, heads, max_tokens, width) for _ in range(2))
        return cls(keys, values, 0)

    def append(self, keys: Tensor, values: Tensor) -> "KeyValueCache":
        """Write the next keys and values.

        Raises:
            ValueError: there is no room for them.
        """
        end = self.length + keys.shape[-2]
        check_room(end, self.keys.shape[-2])
        self.keys[..., self.length : end, :] = keys
        self.values[..., self.length : end, :] = values
        return self._replace(length=end)

    def known(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of the tokens so far."""
        return self.keys[..., : self.length, :], self.values[..., : self.length, :]

    def attend(self, q: Float[Tensor, "batch heads new dim"]) -> Tensor:
        """Return softmax attention of the queries of the last tokens."""
        keys, values = self.known()
        allowed = torch.ones(q.shape[-2], self.length, dtype=torch.bool, device=q.device)
        allowed = allowed.tril(self.length - q.shape[-2])
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)


class CausalSoftmaxAttention(SoftmaxAttention):
    """Softmax attention of a decoder; its arguments are those of :class:`SoftmaxAttention`."""

    def _attend(self, tokens: Any, mask: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        q, k, v = tokens
        return _merged(softmax_attention(q, k, v, mask, causal=True))

    def init_cache(
        self, batch: int, max_tokens: int, *, generator: torch.Generator | None = None
    ) -> KeyValueCache:
        """Return an empty cache for ``max_tokens`` tokens."""
        width = self.dim // self.num_heads
        return KeyValueCache.empty(batch, self.num_heads, max_tokens, width, self.to_qkv.weight)

    @torch.no_grad()
    def step(
        self,
        x: Float[Tensor, "batch new dim"],
        cache: KeyValueCache,
        *,
        token_map: TokenMap | None = None,
    ) -> tuple[AttentionOutput, KeyValueCache]:
        """Attend from the next tokens; see :class:`CausalAttentionModule`."""
        q, k, v = self._project(x, None)
        cache = cache.append(k, v)
        out, penalty = _merged(cache.attend(q))
        return AttentionOutput(self.to_out(out), penalty), cache


class CausalKernelAttention(KernelAttention):
    r"""Kernel attention of a decoder, :math:`a_t \sum_{j \le t} k(q_t, k_j) v_j`.

    Args:
        dim: token width.
        num_heads: heads; must divide ``dim``. Each has its own kernel.
        kernel: ``"rbf"`` or ``"exponential"``.
        symmetric: queries and keys share their projection; a token then weighs most on itself.
        normalise: a_t, ``"none"``: 1; ``"count"``: 1/t; ``"kernel"``: one over the sum of the
            kernel, with the exponential kernel softmax attention.
        initial_variance: σ² to start from; ``None``: 1 for RBF, e^-4 for exponential.
        dropout: rate on the output.

    Raises:
        ValueError: ``num_heads`` does not divide ``dim``, a name is unknown, or a number is out of
            range.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: KernelName = "rbf",
        symmetric: bool = False,
        normalise: NormaliserName = "count",
        initial_variance: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        check_choice("normalise", normalise, NormaliserName)
        super().__init__(
            dim,
            num_heads,
            kernel=kernel,
            symmetric=symmetric,
            initial_variance=initial_variance,
            dropout=dropout,
        )
        self.normalise: NormaliserName = normalise
        if normalise == "kernel":  # σ² cancels: unused, it would break distributed training
            self.kernel.raw_outputscale.requires_grad_(False)

    def _attend(self, tokens: Any, mask: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        q, k, v = tokens
        weight = torch.ones_like(v[..., :1])
        if mask is not None:
            weight = weight.masked_fill(~mask[:, None, :, None], 0.0)
        return _merged(self._sum(q, k, v * weight, weight))

    def init_cache(
        self, batch: int, max_tokens: int, *, generator: torch.Generator | None = None
    ) -> KeyValueCache:
        """Return an empty cache for ``max_tokens`` tokens."""
        width = self.dim // self.num_heads
        like = full_precision(self.to_v.weight)
        return KeyValueCache.empty(batch, self.num_heads, max_tokens, width, like)

    @torch.no_grad()
    def step(
        self,
        x: Float[Tensor, "batch new dim"],
        cache: KeyValueCache,
        *,
        token_map: TokenMap | None = None,
    ) -> tuple[AttentionOutput, KeyValueCache]:
        """Attend from the next tokens; see :class:`CausalAttentionModule`."""
        q, k, v = self._project(x, None)
        cache = cache.append(k, v)
        keys, values = cache.known()
        with torch.autocast(x.device.type, enabled=False):
            out, penalty = _merged(self._sum(q, keys, values, torch.ones_like(values[..., :1])))
        return AttentionOutput(self.to_out(out), penalty), cache

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys over the lengthscales, and values."""
        projected = (self.to_qk(x), (self.to_k or self.to_qk)(x), self.to_v(x))
        q, k, v = map(full_precision, split_heads(projected, self.num_heads))
        return q / self.kernel.lengthscale, k / self.kernel.lengthscale, v

    def _sum(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        """Return a_t σ² Σ_{j≤t} k(q_t, k_j) v_j; weights are 1 at real tokens."""

        def matrix(rows: slice, columns: slice) -> Tensor:
            if self.kernel_name == "rbf":
                return rbf_matrix(q[..., rows, :], k[..., columns, :])
            return torch.exp(q[..., rows, :] @ k[..., columns, :].mT)

        if self.normalise == "kernel":
            out = causal_sum(matrix, torch.cat((v, weight), -1), q.shape[-2])
            total = out[..., -1:]
            return out[..., :-1] / total.masked_fill(total <= 0.0, 1.0)  # padding sees nothing
        out = self.kernel.outputscale[:, None, None] * causal_sum(matrix, v, q.shape[-2])
        if self.normalise == "none":
            return out
        return out / weight.cumsum(-2)[..., -q.shape[-2] :, :].clamp(min=1.0)


def _merged(out: Tensor) -> tuple[Tensor, Tensor]:
    """Return heads side by side, and no penalty."""
    return rearrange(out, "b h t d -> b t (h d)"), out.new_zeros(())


def causal_sum(
    matrix: Callable[[slice, slice], Tensor],
    values: Float[Tensor, "*b tokens channels"],
    num_queries: int,
) -> Float[Tensor, "*b queries channels"]:
    r"""Sum :math:`\sum_{j \le t} K_{tj} v_j` for the last queries, block by block.

    Args:
        matrix: returns rows (of queries) and columns (of tokens) of K.
        values: v of all tokens.
        num_queries: n; the queries are those of the last n tokens.
    """
    before = values.shape[-2] - num_queries
    chunks: list[Tensor] = []
    for start in range(0, num_queries, _BLOCK):
        end = min(start + _BLOCK, num_queries)
        block = matrix(slice(start, end), slice(0, before + end))
        chunks.append(block.tril(before + start) @ values[..., : before + end, :])
    return torch.cat(chunks, -2)


def causal_linear(
    rows: Float[Tensor, "*b tokens features"],
    columns: Float[Tensor, "*b tokens features"],
    values: Float[Tensor, "*b tokens channels"],
    state: Float[Tensor, "*b features channels"],
) -> tuple[Float[Tensor, "*b tokens channels"], Float[Tensor, "*b features channels"]]:
    r"""Sum :math:`\sum_{j \le t} (r_t \cdot c_j) v_j` in O(T): linear attention.

    Args:
        rows: r.
        columns: c.
        values: v.
        state: :math:`\sum_j c_j v_j^\top` of the tokens before these.
    """
    chunks: list[Tensor] = []
    for start in range(0, rows.shape[-2], _BLOCK):
        r, c, v = (each[..., start : start + _BLOCK, :] for each in (rows, columns, values))
        chunks.append((r @ c.mT).tril() @ v + r @ state)
        state = state + c.mT @ v
    return torch.cat(chunks, -2), state


def check_room(tokens: int, room: int) -> None:
    """Raise if a cache has no room for so many tokens."""
    if tokens > room:
        raise ValueError(f"max_tokens must be at least {tokens} for these tokens, got {room}")
