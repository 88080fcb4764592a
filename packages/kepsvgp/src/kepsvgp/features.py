r"""Scores of the kernel SVD: cosine feature maps and data-dependent projections (Eq. 10).

.. math:: e(x) = W_e^\top f(X)\,\phi_q(x), \quad r(x) = W_r^\top f(X)\,\phi_k(x), \quad
    \phi(x) = Wx / \|Wx\|

with f(X) some tokens of the sequence, so that the attention kernel is
:math:`\kappa(x, y) = \langle f(X)\phi_q(x), f(X)\phi_k(y)\rangle` (Chen et al. 2023).

Everything lies tokens last, (…, features, tokens): the projections come out of one batched product
in that layout, and neither the scores nor the heads ever need a transposed copy.
"""

from typing import Any, NamedTuple, cast

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probseq.precision import differentiable_once

# Squared norm below which a projected token counts as zero: padding, and nothing else.
_ZERO_NORM = 1e-24


class ProjectionTokens(NamedTuple):
    """The tokens f(X) of each sequence."""

    rows: Float[Tensor, "batch picked dim"]  # zero where a sequence has fewer of them
    num_rows: Int[Tensor, " batch"] | int  # of each sequence, or of all alike


def pick_tokens(
    x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None, size: int
) -> ProjectionTokens:
    """Pick the tokens f(X): all real ones of a short sequence, else ``size`` evenly spaced ones.

    Which ones depends on the real tokens alone, wherever padding stands: the j-th of p picks among
    n > p real tokens is number floor(j (n - 1) / (p - 1)), first and last included. Where n <= p,
    token j is row j of f(X), and the remaining rows of the projection weights take no part. (The
    authors pick among all positions, padding included.)
    """
    tokens = x.shape[1]
    picks = torch.arange(min(tokens, size), device=x.device)
    gaps = max(size - 1, 1)
    if mask is None:
        if tokens <= size:
            return ProjectionTokens(x, tokens)
        return ProjectionTokens(x[:, picks * (tokens - 1) // gaps], size)
    # n of each sequence, and the positions of its real tokens first, in their order.
    real = mask.sum(-1)
    order = torch.argsort((~mask).byte(), dim=-1, stable=True)
    # Numbers floor(j (n - 1) / (p - 1)) among real tokens, or j, and their positions.
    last = (real - 1).clamp(min=0)[:, None]
    number = torch.where(real[:, None] > size, picks * last // gaps, picks)
    position = order.gather(1, number)
    rows = x.gather(1, position[..., None].expand(-1, -1, x.shape[-1]))
    num_rows = real.clamp(max=size)
    missing = picks >= num_rows[:, None]
    return ProjectionTokens(rows.masked_fill(missing[..., None], 0.0), num_rows)


def projection_weights(
    rows: Float[Tensor, "batch picked dim"], weight: Float[Tensor, "two heads size rank"]
) -> Float[Tensor, "batch two heads rank width"]:
    r"""Data-dependent projections :math:`W_e^\top f(X)` and :math:`W_r^\top f(X)` of each head."""
    heads, picked = weight.shape[1], rows.shape[1]
    stacked = rearrange(weight[:, :, :picked], "two h p s -> h (two s) p")
    # One product a head for the whole batch.
    columns = rearrange(rows, "b p (h k) -> h p (b k)", h=heads)
    return rearrange(
        stacked @ columns, "h (two s) (b k) -> b two h s k", two=2, b=rows.shape[0]
    ).contiguous()


def scores(
    projected: Float[Tensor, "batch two heads width tokens"],
    weights: Float[Tensor, "batch two heads rank width"],
) -> Float[Tensor, "batch two heads rank tokens"]:
    r"""Scores :math:`E^\top` and :math:`R^\top` (10), s numbers a token and head.

    The cosine map is applied to the scores and not to the features: there are fewer of them. A
    token whose projection is zero has :math:`\phi = 0`.
    """
    result, _ = cast(
        "tuple[Tensor, Tensor]", _CosineScores.apply(projected.flatten(0, 2), weights.flatten(0, 2))
    )
    return result.view(*weights.shape[:-1], projected.shape[-1])


def kernel_matrix(
    projected: Float[Tensor, "batch two heads width tokens"],
    rows: Float[Tensor, "batch picked dim"],
) -> Float[Tensor, "batch heads tokens tokens"]:
    r"""Return the kernel :math:`\langle f(X)\phi_q(x_i), f(X)\phi_k(x_j)\rangle`, for analysis."""
    # φ_q and φ_k of every token.
    norm = projected.square().sum(-2, keepdim=True)
    queries, keys = (projected * _inverse_norm(norm)).unbind(1)
    heads = rearrange(rows, "b p (h k) -> b h p k", h=projected.shape[2])
    return (heads @ queries).mT @ (heads @ keys)


def _inverse_norm(squared: Tensor) -> Tensor:
    """Return 1/‖q‖ from ‖q‖², or 0 for a token without direction."""
    return squared.clamp(min=_ZERO_NORM).rsqrt().masked_fill(squared < _ZERO_NORM, 0.0)


class _CosineScores(torch.autograd.Function):
    """D q / ‖q‖; the second result, 1/‖q‖, is there to be kept.

    Autograd takes 3 % more time and 40 to 50 % more memory for a step of the layer.
    """

    @staticmethod
    def forward(projected: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        inverse = _inverse_norm(projected.square().sum(1, keepdim=True))
        product = torch.bmm(weights, projected)
        if torch.compiler.is_compiling():  # torch 2.11 has wrong gradients for what is in place
            return product * inverse, inverse
        return product.mul_(inverse), inverse

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    # Once: kept constants such as 1/‖q‖ would be silently left out of second derivatives.
    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        projected, weights, result, inverse = ctx.saved_tensors
        grad = grad_outputs[0] * inverse
        # d(D q/‖q‖): (Dᵀ g - q̂ (g·e)) / ‖q‖.
        along = (grad * result).sum(1, keepdim=True).mul_(inverse)
        grad_projected = torch.bmm(weights.mT, grad).addcmul_(projected, along, value=-1)
        return grad_projected, torch.bmm(grad, projected.mT)
