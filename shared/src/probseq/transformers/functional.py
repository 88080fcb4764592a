r"""Kernel attention :math:`F = K_{qk} v` (thesis Eq. 3.2), exact, without a T×T matrix.

The sum is not normalised, so no running maximum is needed: a tile of the kernel matrix at a time,
one matrix product gives the logits, ``exp2`` in place the kernel, a second product the sum. The
backward pass makes each tile again, so that only the inputs are kept: O(T) memory both ways, at
any T. Where queries are keys, the matrix is symmetric and only the tiles on and above its diagonal
are made. On a CPU this beats the way through fused softmax attention (a sink key with logit 0
returns the normaliser, which is then divided out), whose backward pass slows down tenfold on the
tiny numbers that a kernel of distant tokens gives.

Inputs are already divided by the lengthscales; the outputscale is the caller's.

NaN and infinity in a tensor reach the result.
"""

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.checks import broadcastable, check_choice, check_real
from probseq.kernels.distances import check_points
from probseq.operators import opaque
from probseq.precision import without_autocast
from probseq.transformers.names import KernelName

# exp2 costs less than exp; the factor goes into the features.
_ROOT_LOG2E = math.sqrt(math.log2(math.e))
# Kernel values below 2^cutoff become zero. They are far below round-off, and with their squares
# they would be denormal numbers, which slow a CPU's matrix products down tenfold and more.
_CUTOFF = {torch.float32: -50.0, torch.float64: -400.0}
_UNDERFLOW = -2000.0
# Side of a square tile of the kernel matrix, and elements of the tiles of several batch items that
# are made at once: they should stay in the processor's cache; a GPU wants more.
_CPU_SIDE, _CPU_ELEMENTS = 2**8, 2**18
_GPU_SIDE, _GPU_ELEMENTS = 2**13, 2**28


def kernel_attention(
    queries: Float[Tensor, "*batch queries dim"],
    keys: Float[Tensor, "*batch keys dim"],
    values: Float[Tensor, "*batch keys channels"],
    *,
    kernel: KernelName,
    key_mask: Bool[Tensor, "*batch_or_one keys"] | None = None,
) -> Float[Tensor, "*batch queries channels"]:
    r"""Compute :math:`\sum_j k(q_i, k_j) v_j` without normalisation (thesis Eq. 3.2).

    ``"rbf"`` is :math:`k(q, k) = \exp(-\tfrac12 |q - k|^2)`, ``"exponential"`` is :math:`k(q, k) =
    \exp(q^\top k)`; queries and keys are divided by the lengthscales. If they are the same tensor,
    half of the kernel matrix is left out, and hidden keys are no queries either: what comes out
    there is finite and without meaning. The mask is true at real keys; others take no part.
    """
    if not torch.compiler.is_compiling():  # torch 2.6 cannot trace what reads a Literal
        check_choice("kernel", kernel, KernelName)
    check_points(queries, keys, ("queries", "keys"))
    check_real(values=values)
    if (
        values.ndim != keys.ndim
        or values.shape[:-1] != keys.shape[:-1]
        or queries.shape[:-2] != keys.shape[:-2]
        or values.dtype != keys.dtype
    ):
        raise ValueError(
            "queries, keys and values must have the shapes (*batch, queries, dim), "
            "(*batch, keys, dim) and (*batch, keys, channels) and one dtype, got "
            f"{tuple(queries.shape)}, {tuple(keys.shape)} and {tuple(values.shape)} in "
            f"{keys.dtype} and {values.dtype}"
        )
    if key_mask is not None and (
        key_mask.dtype != torch.bool
        or key_mask.ndim != keys.ndim - 1
        or key_mask.shape[-1] != keys.shape[-2]
        or not broadcastable(key_mask.shape, keys.shape[:-1])
    ):
        raise ValueError(
            f"key_mask must be boolean and broadcast to (*batch, keys)={tuple(keys.shape[:-1])}, "
            f"got {key_mask.dtype} of shape {tuple(key_mask.shape)}"
        )
    same = queries is keys
    if key_mask is not None:
        # Filled, not multiplied: padding may hold anything.
        hidden = ~key_mask.unsqueeze(-1)
        keys = keys.masked_fill(hidden, 0.0)
        values = values.masked_fill(hidden, 0.0)
    if kernel == "rbf":
        centre = _mean_key(keys, key_mask)
        keys = keys - centre
        queries = keys if same else queries - centre
    batch = values.shape[:-2]
    count = math.prod(batch)
    folded = values.reshape(count, *values.shape[-2:])
    keys = keys.reshape(count, *keys.shape[-2:])
    if same:
        out = _SymmetricSum.apply(keys, folded, kernel)
    else:
        queries = queries.reshape(count, *queries.shape[-2:])
        out = _KernelSum.apply(*_logit_features(queries, keys, kernel), folded)
    return cast("Tensor", out).reshape(*batch, *queries.shape[-2:-1], values.shape[-1])


def rbf_matrix(
    x: Float[Tensor, "*batch n dim"], z: Float[Tensor, "*batch m dim"]
) -> Float[Tensor, "*batch n m"]:
    r"""Compute :math:`\exp(-\tfrac12 |x_i - z_j|^2)` by one matrix product.

    In float32 the expansion of the square needs ``x`` and ``z`` near the origin: centre both first.

    Inputs are divided by the lengthscales.
    """
    check_points(x, z)
    queries, keys = _logit_features(x, z, "rbf")
    logits = queries @ keys.mT
    # Of the logits autograd keeps this mask alone.
    return logits.masked_fill(logits <= _CUTOFF[logits.dtype], _UNDERFLOW).exp2()


def _mean_key(keys: Tensor, key_mask: Tensor | None) -> Tensor:
    """Mean of the real keys: the kernel is invariant to it, float32 is not, the gradient is 0."""
    with torch.no_grad():
        if key_mask is None:
            return keys.sum(-2, keepdim=True) / max(1, keys.shape[-2])
        count = key_mask.sum(-1).clamp(min=1)[..., None, None]
        return keys.sum(-2, keepdim=True) / count


def _logit_features(queries: Tensor, keys: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Features with inner product log2 k(q, k); RBF: [q, 1, -|q|²/2] and [k, -|k|²/2, 1]."""
    same = queries is keys
    keys = keys * _ROOT_LOG2E
    queries = keys if same else queries * _ROOT_LOG2E
    if kernel == "exponential":
        return queries, keys
    half_k = -0.5 * keys.square().sum(-1, keepdim=True)
    half_q = half_k if same else -0.5 * queries.square().sum(-1, keepdim=True)
    return (
        torch.cat([queries, torch.ones_like(half_q), half_q], -1),
        torch.cat([keys, half_k, torch.ones_like(half_k)], -1),
    )


def _exp2_(logits: Tensor) -> Tensor:
    """Two to the power of ``logits``, in place, with values below the cutoff set to zero."""
    return F.threshold(logits, _CUTOFF[logits.dtype], _UNDERFLOW, inplace=True).exp2_()


def _like(*inputs: Any) -> tuple[Tensor, ...]:
    """Return what gradients of tensors look like, the first argument, a gradient, left out."""
    return tuple(torch.empty_like(each) for each in inputs[1:] if isinstance(each, Tensor))


@opaque(lambda queries, keys, values: values.new_empty(*queries.shape[:2], values.shape[-1]))
def _kernel_sum(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    out = values.new_zeros(*queries.shape[:2], values.shape[-1])
    for item, rows, columns, kernel, _ in _tiles(queries, keys):
        _exp2_(torch.bmm(queries[item, rows], keys[item, columns].mT, out=kernel))
        out[item, rows].baddbmm_(kernel, values[item, columns])
    return out


@opaque(_like)
def _kernel_sum_gradients(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_queries, grad_keys = torch.zeros_like(queries), torch.zeros_like(keys)
    grad_values = torch.zeros_like(values)
    for item, rows, columns, kernel, grad_logits in _tiles(queries, keys):
        query, key = queries[item, rows], keys[item, columns]
        _exp2_(torch.bmm(query, key.mT, out=kernel))
        grad_values[item, columns].baddbmm_(kernel.mT, grad[item, rows])
        # d 2^l = ln 2 · 2^l dl; the constant is applied once, at the end.
        torch.bmm(grad[item, rows], values[item, columns].mT, out=grad_logits).mul_(kernel)
        grad_queries[item, rows].baddbmm_(grad_logits, key)
        grad_keys[item, columns].baddbmm_(grad_logits.mT, query)
    return grad_queries.mul_(math.log(2.0)), grad_keys.mul_(math.log(2.0)), grad_values


class _KernelSum(torch.autograd.Function):
    """Σ_j 2^(q_i·k_j) v_j, tile by tile; the backward pass makes the kernel again."""

    @staticmethod
    def forward(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return _kernel_sum(queries, keys, values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _kernel_sum_gradients(*grad_outputs, *ctx.saved_tensors)


@opaque(lambda inputs, values, name: torch.empty_like(values))
def _symmetric_sum(inputs: Tensor, values: Tensor, name: str) -> Tensor:
    queries, keys = _logit_features(inputs, inputs, name)
    out = torch.zeros_like(values)
    for item, rows, columns, kernel, _ in _tiles(queries, keys, symmetric=True):
        _exp2_(torch.bmm(queries[item, rows], keys[item, columns].mT, out=kernel))
        out[item, rows].baddbmm_(kernel, values[item, columns])
        if rows != columns:
            out[item, columns].baddbmm_(kernel.mT, values[item, rows])
    return out


@opaque(_like)
def _symmetric_sum_gradients(
    grad: Tensor, inputs: Tensor, values: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    queries, keys = _logit_features(inputs, inputs, name)
    # The logit of a pair enters two sums: its gradient is k_ij (g_i·v_j + v_i·g_j), symmetric.
    left, right = torch.cat([grad, values], -1), torch.cat([values, grad], -1)
    grad_features, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
    for item, rows, columns, kernel, grad_logits in _tiles(queries, keys, symmetric=True):
        _exp2_(torch.bmm(queries[item, rows], keys[item, columns].mT, out=kernel))
        torch.bmm(left[item, rows], right[item, columns].mT, out=grad_logits).mul_(kernel)
        grad_values[item, rows].baddbmm_(kernel, grad[item, columns])
        grad_features[item, rows].baddbmm_(grad_logits, keys[item, columns])
        if rows != columns:
            grad_values[item, columns].baddbmm_(kernel.mT, grad[item, rows])
            grad_features[item, columns].baddbmm_(grad_logits.mT, keys[item, rows])
    # Exponential: Σ_j G_ij x_j, and a key's features are √log2(e) times x_j. Strides: the inputs'.
    grad_keys, grad_inputs = grad_features[..., : inputs.shape[-1]], torch.empty_like(inputs)
    torch.div(grad_keys, _ROOT_LOG2E, out=grad_inputs)
    if name == "rbf":  # Σ_j G_ij (x_j - x_i), and the last feature of a key is 1
        grad_inputs -= grad_features[..., -1:] * inputs
    return grad_inputs, grad_values


class _SymmetricSum(torch.autograd.Function):
    """Σ_j k(x_i, x_j) v_j: a tile above the diagonal serves its mirror image too.

    By autograd a step of sparse GP attention takes 1.3 times the memory at 64 tokens, 4.5 times and
    1.8 times as long at 512.
    """

    @staticmethod
    def forward(inputs: Tensor, values: Tensor, name: KernelName) -> Tensor:
        return _symmetric_sum(inputs, values, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, KernelName], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.name = inputs[2]

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, values = ctx.saved_tensors
        return *_symmetric_sum_gradients(grad_outputs[0], inputs, values, ctx.name), None


def _tiles(
    queries: Tensor, keys: Tensor, *, symmetric: bool = False
) -> Iterator[tuple[slice, slice, slice, Tensor, Tensor]]:
    """Slices of batch items, rows and columns of the kernel matrix, and two buffers for that tile.

    The same two for all tiles: on a CPU, fresh memory for each costs more than the product. If
    ``symmetric``, only the tiles on and above the diagonal.
    """
    items, num_rows, num_columns = queries.shape[0], queries.shape[1], keys.shape[1]
    side, elements = (
        (_GPU_SIDE, _GPU_ELEMENTS) if queries.device.type == "cuda" else (_CPU_SIDE, _CPU_ELEMENTS)
    )
    tile = max(1, min(side, num_rows) * min(side, num_columns))
    step = max(1, min(items, elements // tile))
    buffers = queries.new_empty(2, step * tile)
    for item in range(0, items, step):
        for row in range(0, num_rows, side):
            for column in range(row if symmetric else 0, num_columns, side):
                shape = (
                    min(step, items - item),
                    min(side, num_rows - row),
                    min(side, num_columns - column),
                )
                first, second = (buffer[: math.prod(shape)].view(shape) for buffer in buffers)
                yield (
                    slice(item, item + step),
                    slice(row, row + side),
                    slice(column, column + side),
                    first,
                    second,
                )
