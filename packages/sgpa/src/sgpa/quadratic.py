r"""Quadratic forms of many rows, without keeping what they are made of.

SGPA's predictive variance (thesis Eq. 3.15) over the prior's is :math:`1 + w_t^\top (R_d R_d^\top
- I) w_t` for every token t and output dimension d. Written with autograd it keeps a rows × (dims ·
M) tensor for the backward pass, by far the largest of the layer. Here a chunk of rows at a time is
multiplied, squared and summed, and the backward pass multiplies again: only ``w`` and ``R`` are
kept: autograd takes 1.1 to 1.3 times as long for a step of the layer (64 and 512 tokens, one
thread) and 5.5 times the memory. R is lower triangular: its right half is zero in its upper half,
which is a quarter of the work.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probseq.operators import opaque
from probseq.precision import without_autocast

# Entries of w that are negligible beside a unit variance: their squares are denormal numbers, which
# slow a CPU down tenfold.
_NEGLIGIBLE = 1e-15
# Elements of one intermediate chunk: it should stay in the processor's cache; a GPU wants more.
_CPU_CHUNK, _GPU_CHUNK = 2**18, 2**26


def quadratic_forms(
    rows: Float[Tensor, "heads rows m"], factors: Float[Tensor, "heads dims m m"]
) -> Float[Tensor, "heads rows dims"]:
    r"""Compute :math:`\|R_{hd}^\top w_{ht}\|^2 - \|w_{ht}\|^2` for all rows t and dimensions d.

    A difference of sums of squares, so that it is no smaller than minus the second to round-off.
    Rows are the vectors w, factors the matrices R, whose lower triangles are read.
    """
    result: Tensor = _QuadraticForms.apply(rows, factors)  # pyright: ignore[reportAssignmentType]
    return result


def flush_subnormals(x: Tensor) -> Tensor:
    """Set what is negligible beside a unit variance to zero.

    Products of small kernel values are denormal numbers, which slow a CPU's matrix products down
    tenfold.
    """
    return F.hardshrink(x, _NEGLIGIBLE)


@opaque(lambda rows, factors: rows.new_empty(*rows.shape[:2], factors.shape[1]))
def _forms(rows: Tensor, factors: Tensor) -> Tensor:
    dims = factors.shape[1]
    halves = _halves(factors)
    out = rows.new_empty(*rows.shape[:2], dims)
    for heads, chunk, buffer in _chunks(rows, halves):
        block = flush_subnormals(rows[heads, chunk])
        target = out[heads, chunk].copy_(-block.square().sum(-1, keepdim=True))
        for start, half in halves:
            product = _product(block[..., start:], half[heads], buffer)
            target += product.square_().unflatten(-1, (-1, dims)).sum(-2)
    return out


@opaque(lambda grad, rows, factors: (torch.empty_like(rows), torch.empty_like(factors)))
def _forms_gradients(grad: Tensor, rows: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    dims = factors.shape[1]
    halves = _halves(factors)
    grad_rows, grad_factors = torch.empty_like(rows), torch.zeros_like(factors)
    grad_halves = [torch.zeros_like(half) for _, half in halves]
    for heads, chunk, buffer in _chunks(rows, halves):
        block = flush_subnormals(rows[heads, chunk])
        weight = 2.0 * grad[heads, chunk].unsqueeze(-2)
        grad_rows[heads, chunk] = -weight.sum(-1) * block
        for (start, half), grad_half in zip(halves, grad_halves, strict=True):
            columns = block[..., start:]
            # d‖Rᵀw‖² = 2 (wᵀR)(Rᵀdw + dRᵀw): both gradients need the product, weighted.
            product = _product(columns, half[heads], buffer)
            product.unflatten(-1, (-1, dims)).mul_(weight)
            grad_rows[heads, chunk, start:].baddbmm_(product, half[heads].mT)
            grad_half[heads].baddbmm_(columns.mT, product)
    for (start, _), grad_half in zip(halves, grad_halves, strict=True):
        matrices = rearrange(grad_half, "h m (n d) -> h d m n", d=dims)
        grad_factors[..., start:, start : start + matrices.shape[-1]] = matrices.tril()
    return grad_rows, grad_factors


class _QuadraticForms(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, factors: Tensor) -> Tensor:
        return _forms(rows, factors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        return _forms_gradients(*grad_outputs, *ctx.saved_tensors)


def _halves(factors: Tensor) -> list[tuple[int, Tensor]]:
    """Left and right columns of all R, side by side, without the rows in which they are zero.

    The first entry is the first row that is not zero; the second is ``(heads, m, columns * dims)``:
    one product serves all dimensions.
    """
    m = factors.shape[-1]
    width = (m + 1) // 2
    return [
        (start, rearrange(columns[..., start:, :], "h d m n -> h m (n d)"))
        for start, columns in zip(
            range(0, m, width), factors.tril().split(width, dim=-1), strict=True
        )
    ]


def _chunks(
    rows: Tensor, halves: list[tuple[int, Tensor]]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Slices of heads, slices of rows, and a buffer for the larger of the products with ``halves``.

    Several heads only where all their rows fit. One buffer for all: on a CPU, fresh memory for each
    costs more than the product.
    """
    num_heads, num_rows, _ = rows.shape
    width = halves[0][1].shape[-1]
    limit = _GPU_CHUNK if rows.device.type == "cuda" else _CPU_CHUNK
    step = max(1, min(num_rows, limit // width))
    group = max(1, min(num_heads, limit // (step * width)))
    buffer = rows.new_empty(group * step * width)
    for head in range(0, num_heads, group):
        for start in range(0, num_rows, step):
            yield slice(head, head + group), slice(start, start + step), buffer


def _product(left: Tensor, right: Tensor, buffer: Tensor) -> Tensor:
    shape = (*left.shape[:2], right.shape[-1])
    return torch.bmm(left, right, out=buffer[: math.prod(shape)].view(shape))
