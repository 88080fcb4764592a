r"""Quadratic forms of many rows, without keeping what they are made of.

The part of SGPA's predictive variance that differs between output dimensions (thesis Eq. 3.15) is
:math:`\|R_d^\top w_t\|^2` for every token t and dimension d. Written with autograd it keeps a
rows × (dims · M) tensor for the backward pass, by far the largest of the layer. Here a chunk of
rows at a time is multiplied, squared and summed, and the backward pass multiplies again: only
``w`` and ``R`` are kept.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Elements of one intermediate block: it should stay in the processor's cache; a GPU wants more.
_CPU_BLOCK = 2**18
_GPU_BLOCK = 2**26


def quadratic_forms(
    rows: Float[Tensor, "heads rows m"], factors: Float[Tensor, "heads dims m m"]
) -> Float[Tensor, "heads rows dims"]:
    r"""Compute :math:`\|R_{hd}^\top w_{ht}\|^2` for all rows t and dimensions d.

    Args:
        rows: the vectors w.
        factors: the matrices R.

    Returns:
        The squared norms, ``(heads, rows, dims)``, never negative.
    """
    result: Tensor = _QuadraticForms.apply(rows, factors)  # pyright: ignore[reportAssignmentType]
    return result


def _side_by_side(factors: Tensor) -> Tensor:
    """Lay out ``(heads, dims, m, n)`` as ``(heads, m, dims * n)``: one product for all dims."""
    return factors.transpose(1, 2).flatten(2)


def _blocks(rows: Tensor, stacked: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows, and for each a piece of one buffer for its product with ``stacked``.

    One buffer for all blocks: on a CPU, fresh memory for each costs more than the product.
    """
    heads, width = rows.shape[0], stacked.shape[-1]
    limit = _GPU_BLOCK if rows.is_cuda else _CPU_BLOCK
    step = max(1, min(rows.shape[1], limit // (heads * width)))
    buffer = rows.new_empty(heads * step * width)
    for start in range(0, rows.shape[1], step):
        size = min(step, rows.shape[1] - start)
        yield slice(start, start + size), buffer[: heads * size * width].view(heads, size, width)


class _QuadraticForms(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, factors: Tensor) -> Tensor:
        dims, m = factors.shape[1], factors.shape[-1]
        stacked = _side_by_side(factors)
        out = rows.new_empty(*rows.shape[:2], dims)
        for block, buffer in _blocks(rows, stacked):
            torch.bmm(rows[:, block], stacked, out=buffer)
            out[:, block] = buffer.square_().unflatten(-1, (dims, m)).sum(-1)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (rows, factors), (grad,) = ctx.saved_tensors, grad_outputs
        dims, m = factors.shape[1], factors.shape[-1]
        stacked = _side_by_side(factors)
        grad_rows, grad_stacked = torch.empty_like(rows), torch.zeros_like(stacked)
        for block, buffer in _blocks(rows, stacked):
            # d‖Rᵀw‖² = 2 (wᵀR)(Rᵀdw + dRᵀw): both gradients need the product, weighted by 2·grad.
            torch.bmm(rows[:, block], stacked, out=buffer)
            buffer.unflatten(-1, (dims, m)).mul_((2.0 * grad[:, block]).unsqueeze(-1))
            grad_rows[:, block] = buffer @ stacked.mT
            grad_stacked.baddbmm_(rows[:, block].mT, buffer)
        return grad_rows, grad_stacked.unflatten(-1, (dims, m)).transpose(1, 2)
