r"""Two sums over the kernel :math:`\kappa(x, z) = e^{-\frac12 |x - z|^2}` with gradients by hand.

Both make κ in one piece of memory, by a product, ``exp2`` in place; written with autograd, either
keeps several tensors of its size. Inputs are already divided by the lengthscales and, because the
square is expanded, near the origin: the kernel does not depend on it, float32 does.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from probseq.operators import opaque
from probseq.precision import without_autocast

# exp2 costs less than exp on a CPU.
_LOG2E = math.log2(math.e)
# Kernel values below 2^cutoff become zero: they are far below round-off, and their products would
# be denormal numbers, which slow a CPU's matrix products down tenfold.
_CUTOFF = {torch.float32: -50.0, torch.float64: -400.0}
_UNDERFLOW = -2000.0
# Elements of the tiles of the kernel matrix, of several items, that are made at once: they should
# stay in the processor's cache; a GPU wants more. Small tiles leave out more of the lower half of
# the matrix, and below the smallest side there is more overhead than work.
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**18, 2**27
_SMALLEST_SIDE = 2**7
# Tokens beyond which tiles are summed in float64.
_LONG = 2**11


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
        matrix = _log2_norms(inputs) + _log2_norms(inducing).mT
        _add_products_and_exp2_(matrix, inputs, inducing)
        ctx.save_for_backward(inputs, inducing, whitener, matrix)
        return matrix @ whitener

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, inducing, whitener, matrix = ctx.saved_tensors
        # Σ_j G_ij (z_j - x_i), with G the gradient of the logits.
        grad = (grads[0] @ whitener.mT).mul_(matrix)
        grad_inputs = (inputs * -grad.sum(-1, keepdim=True)).baddbmm_(grad, inducing)
        grad_inducing = grad.mT @ inputs - grad.sum(-2)[..., None] * inducing
        return grad_inputs, grad_inducing, matrix.mT @ grads[0]


@opaque(lambda inputs, features: features.new_empty(features.shape[0], *features.shape[-1:] * 2))
def _form(inputs: Tensor, features: Tensor) -> Tensor:
    channels = features.shape[-1]
    # Each tile's part is exact to round-off; a float32 sum of hundreds of them would not be.
    wide = torch.float64 if inputs.shape[1] > _LONG else features.dtype
    form = features.new_zeros(len(features), channels, channels, dtype=wide)
    for item, row, column, kernel, _ in _tiles(inputs):
        part = features[item, row].mT @ (kernel @ features[item, column])
        form[item] += part
        if row != column:
            form[item] += part.mT
    return form.to(features.dtype)


@opaque(lambda grad, inputs, features: (torch.empty_like(inputs), torch.empty_like(features)))
def _form_gradients(grad: Tensor, inputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    # Both factors Φ, and both arguments of κ, pass a gradient on: that of E plus its transpose.
    symmetric = grad + grad.mT
    weighted = features @ symmetric
    grad_inputs, smoothed = torch.zeros_like(inputs), torch.zeros_like(features)
    sums = inputs.new_zeros(*inputs.shape[:-1], 1)
    for item, row, column, kernel, buffer in _tiles(inputs):
        smoothed[item, row].baddbmm_(kernel, features[item, column])
        torch.bmm(weighted[item, row], features[item, column].mT, out=buffer).mul_(kernel)
        # Σ_j G_ij (x_j - x_i); the second term waits for the whole sum.
        grad_inputs[item, row].baddbmm_(buffer, inputs[item, column])
        sums[item, row] += buffer.sum(-1, keepdim=True)
        if row != column:
            smoothed[item, column].baddbmm_(kernel.mT, features[item, row])
            grad_inputs[item, column].baddbmm_(buffer.mT, inputs[item, row])
            sums[item, column] += buffer.sum(-2)[..., None]
    return grad_inputs.addcmul_(sums, inputs, value=-1.0), smoothed @ symmetric


class _KernelForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, features: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, features)
        return _form(inputs, features)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return _form_gradients(*grads, *ctx.saved_tensors)


def _log2_norms(inputs: Tensor) -> Tensor:
    """Return -½|x|² in bits, ``(..., 1)``."""
    # One pass where a square and a sum would be two.
    return torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).square_().mul_(-0.5 * _LOG2E)


def _add_products_and_exp2_(norms: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """Turn sums of norms into kernel values, in place, those below the cutoff into zero."""
    logits = norms.baddbmm_(x, z.mT, alpha=_LOG2E)
    return F.threshold(logits, _CUTOFF[logits.dtype], _UNDERFLOW, inplace=True).exp2_()


def _tiles(inputs: Tensor) -> Iterator[tuple[slice, slice, slice, Tensor, Tensor]]:
    """Items, rows and columns of the tiles on and above the diagonal, each with κ and a buffer.

    The memory is the same for all: on a CPU, fresh memory for each costs more than the product.
    """
    items, tokens = inputs.shape[:2]
    norms = _log2_norms(inputs)
    elements = _GPU_ELEMENTS if inputs.device.type == "cuda" else _CPU_ELEMENTS
    side = min(tokens, max(_SMALLEST_SIDE, math.isqrt(elements // items)))
    step = max(1, min(items, elements // side**2))
    buffers = inputs.new_empty(2, step * side**2)
    for item in range(0, items, step):
        for row in range(0, tokens, side):
            for column in range(row, tokens, side):
                shape = (
                    min(step, items - item),
                    min(side, tokens - row),
                    min(side, tokens - column),
                )
                kernel, buffer = (memory[: math.prod(shape)].view(shape) for memory in buffers)
                place = slice(item, item + step)
                rows, columns = slice(row, row + side), slice(column, column + side)
                torch.add(norms[place, rows], norms[place, columns].mT, out=kernel)
                _add_products_and_exp2_(kernel, inputs[place, rows], inputs[place, columns])
                yield place, rows, columns, kernel, buffer
