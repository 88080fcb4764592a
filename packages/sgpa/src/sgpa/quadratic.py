r"""Quadratic forms of many rows, without keeping what they are made of.

The part of SGPA's predictive variance that differs between output dimensions (thesis Eq. 3.15) is
:math:`\|R_d^\top w_t\|^2` for every token t and dimension d. Written with autograd it keeps a
rows × (dims · M) tensor for the backward pass, by far the largest of the layer. Here a chunk of
rows at a time is multiplied, squared and summed, and the backward pass multiplies again: only
``w`` and ``R`` are kept.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Elements of one intermediate block: it should stay in the processor's cache; a GPU wants more.
_CPU_BLOCK = 2**19
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


def _chunk(rows: Tensor, width: int) -> int:
    block = _GPU_BLOCK if rows.is_cuda else _CPU_BLOCK
    return max(1, block // (rows.shape[0] * width))


def _side_by_side(factors: Tensor) -> Tensor:
    """Lay out ``(heads, dims, m, n)`` as ``(heads, m, dims * n)``: one product for all dims."""
    return factors.transpose(1, 2).flatten(2)


class _QuadraticForms(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, factors: Tensor) -> Tensor:
        dims, m = factors.shape[1], factors.shape[-1]
        stacked = _side_by_side(factors)
        parts: list[Tensor] = []
        for block in rows.split(_chunk(rows, dims * m), dim=1):
            parts.append((block @ stacked).square_().unflatten(-1, (dims, m)).sum(-1))
        return torch.cat(parts, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (rows, factors), (grad,) = ctx.saved_tensors, grad_outputs
        _, dims, m, _ = factors.shape
        stacked = _side_by_side(factors)
        grad_stacked = torch.zeros_like(stacked)
        grad_rows: list[Tensor] = []
        size = _chunk(rows, dims * m)
        for block, grad_block in zip(rows.split(size, 1), grad.split(size, 1), strict=True):
            # d‖Rᵀw‖² = 2 (wᵀR) dRᵀw + ...: both gradients need the product weighted by 2·grad.
            product = (block @ stacked).unflatten(-1, (dims, m))
            weighted = (product * (2.0 * grad_block).unsqueeze(-1)).flatten(2)
            grad_rows.append(weighted @ stacked.mT)
            grad_stacked.baddbmm_(block.mT, weighted)
        grad_factors = grad_stacked.unflatten(-1, (dims, m)).transpose(1, 2)
        return torch.cat(grad_rows, 1), grad_factors
