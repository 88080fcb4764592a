r"""Two sums over the kernel :math:`\kappa(x, z) = e^{-\frac12 |x - z|^2}` with gradients by hand.

Both make κ in one piece of memory, by a product, ``exp2`` in place; written with autograd, either
keeps several tensors of its size. Inputs are already divided by the lengthscales and, because the
square is expanded, near the origin: the kernel is invariant to it, float32 is not.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# exp2 costs less than exp on a CPU.
_LOG2E = math.log2(math.e)
# Kernel values below 2^cutoff become zero: they are far below round-off, and their products would
# be denormal numbers, which slow a CPU's matrix products down tenfold.
_CUTOFF = {torch.float32: -50.0, torch.float64: -400.0}
_UNDERFLOW = -2000.0
# Side of a square tile of the kernel matrix, and elements of the tiles of several items made at
# once: they should stay in the processor's cache; a GPU wants more.
_CPU_SIDE, _CPU_ELEMENTS = 2**8, 2**18
_GPU_SIDE, _GPU_ELEMENTS = 2**12, 2**27


def whitened_features(
    inputs: Float[Tensor, "items rows dim"],
    inducing: Float[Tensor, "items m dim"],
    whitener: Float[Tensor, "items m m"],
) -> Float[Tensor, "items rows m"]:
    r"""Compute :math:`\kappa(x, z)\, L^{-\top}`.

    Args:
        inputs: x.
        inducing: z.
        whitener: :math:`L^{-\top}`, or any other matrix.
    """
    features: Tensor = _WhitenedFeatures.apply(inputs, inducing, whitener)  # pyright: ignore[reportAssignmentType]
    return features


def kernel_form(
    inputs: Float[Tensor, "items rows dim"], features: Float[Tensor, "items rows channels"]
) -> Float[Tensor, "items channels channels"]:
    r"""Compute :math:`\Phi^\top \kappa(x, x)\, \Phi`, tile by tile and half of the tiles.

    Time O(T²), memory O(T): only x and Φ are kept for the backward pass, which makes the tiles
    again. Differentiable once.

    Args:
        inputs: x.
        features: Φ; rows that are zero take no part.
    """
    form: Tensor = _KernelForm.apply(inputs, features)  # pyright: ignore[reportAssignmentType]
    return form


class _WhitenedFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, inducing: Tensor, whitener: Tensor) -> Tensor:
        logits = _log2_norms(inputs) + _log2_norms(inducing).mT
        matrix = _exp2_(logits.baddbmm_(inputs, (_LOG2E * inducing).mT))
        ctx.save_for_backward(inputs, inducing, whitener, matrix)
        return matrix @ whitener

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, inducing, whitener, matrix = ctx.saved_tensors
        # Σ_j G_ij (z_j - x_i), with G the gradient of the logits.
        grad = (grads[0] @ whitener.mT).mul_(matrix)
        grad_inputs = (inputs * -grad.sum(-1, keepdim=True)).baddbmm_(grad, inducing)
        grad_inducing = grad.mT @ inputs - grad.sum(-2)[..., None] * inducing
        return grad_inputs, grad_inducing, matrix.mT @ grads[0]


class _KernelForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, features: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, features)
        rows, columns = _logit_features(inputs)
        channels = features.shape[-1]
        form = features.new_zeros(len(features), channels, channels)
        for item, row, column, kernel, _ in _tiles(rows):
            _exp2_(torch.bmm(rows[item, row], columns[item, column].mT, out=kernel))
            part = features[item, row].mT @ (kernel @ features[item, column])
            form[item] += part
            if row != column:
                form[item] += part.mT
        return form

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        inputs, features = ctx.saved_tensors
        rows, columns = _logit_features(inputs)
        # Both factors Φ, and both arguments of κ, pass a gradient on: that of E plus its transpose.
        symmetric = grads[0] + grads[0].mT
        weighted = features @ symmetric
        grad_features, smoothed = torch.zeros_like(rows), torch.zeros_like(features)
        for item, row, column, kernel, grad in _tiles(rows):
            _exp2_(torch.bmm(rows[item, row], columns[item, column].mT, out=kernel))
            smoothed[item, row].baddbmm_(kernel, features[item, column])
            torch.bmm(weighted[item, row], features[item, column].mT, out=grad).mul_(kernel)
            grad_features[item, row].baddbmm_(grad, columns[item, column])
            if row != column:
                smoothed[item, column].baddbmm_(kernel.mT, features[item, row])
                grad_features[item, column].baddbmm_(grad.mT, columns[item, row])
        # Σ_j G_ij (x_j - x_i): columns hold x_j and a one.
        dim = inputs.shape[-1]
        grad_inputs = grad_features[..., :dim] - grad_features[..., dim : dim + 1] * inputs
        return grad_inputs, smoothed @ symmetric


def _log2_norms(inputs: Tensor) -> Tensor:
    """Return -½|x|² in bits, ``(..., 1)``."""
    # One pass where a square and a sum would be two.
    return torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).square_().mul_(-0.5 * _LOG2E)


def _logit_features(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns whose inner products are log2 κ."""
    norms, unit = _log2_norms(inputs), torch.ones_like(inputs[..., :1])
    return torch.cat([_LOG2E * inputs, norms, unit], -1), torch.cat([inputs, unit, norms], -1)


def _exp2_(logits: Tensor) -> Tensor:
    """Two to the power of ``logits``, in place, with values below the cutoff set to zero."""
    return F.threshold(logits, _CUTOFF[logits.dtype], _UNDERFLOW, inplace=True).exp2_()


def _tiles(rows: Tensor) -> Iterator[tuple[slice, slice, slice, Tensor, Tensor]]:
    """Items, rows and columns of the tiles on and above the diagonal, and two buffers for each.

    The same two for all: on a CPU, fresh memory for each costs more than the product.
    """
    items, tokens = rows.shape[:2]
    side, elements = (_GPU_SIDE, _GPU_ELEMENTS) if rows.is_cuda else (_CPU_SIDE, _CPU_ELEMENTS)
    step = max(1, min(items, elements // min(side, tokens) ** 2))
    buffers = rows.new_empty(2, step * min(side, tokens) ** 2)
    for item in range(0, items, step):
        for row in range(0, tokens, side):
            for column in range(row, tokens, side):
                shape = (
                    min(step, items - item),
                    min(side, tokens - row),
                    min(side, tokens - column),
                )
                first, second = (buffer[: math.prod(shape)].view(shape) for buffer in buffers)
                yield (
                    slice(item, item + step),
                    slice(row, row + side),
                    slice(column, column + side),
                    first,
                    second,
                )
