"""Projection of tokens to heads, laid out by head at once."""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probseq.precision import without_autocast
from probseq.transformers.attention import full_precision

Heads = Float[Tensor, "heads batch tokens width"]


def project_heads(
    x: Float[Tensor, "batch tokens dim"],
    weight: Float[Tensor, "rows dim"],
    origin: Float[Tensor, "heads 1 width"],
) -> tuple[Heads, Heads, Heads, Heads]:
    """Project tokens to queries, canonical inputs, keys and values, all but the last minus origin.

    One product a head writes each part where it is used. A linear layer would write all of them
    side by side, and a second pass over four times the tokens would move them.

    Args:
        x: tokens.
        weight: of the four projections, one below the other, each with its heads so.
        origin: what to subtract; a constant to gradients.

    Returns:
        The four parts, in at least float32.
    """
    parts: tuple[Tensor, Tensor, Tensor, Tensor] = _ProjectHeads.apply(x, weight, origin)  # pyright: ignore[reportAssignmentType]
    return parts


class _ProjectHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, origin: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        rows = x.flatten(0, 1).expand(len(origin), -1, -1)
        by_head = rearrange(weight, "(four h w) d -> four h d w", four=4, h=len(origin))
        shift = -origin.to(x.dtype)
        parts = [torch.baddbmm(shift, rows, part) for part in by_head[:3]]
        parts.append(torch.bmm(rows, by_head[3]))
        return tuple(full_precision(part).unflatten(1, x.shape[:2]) for part in parts)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        heads, batch, tokens, width = grads[0].shape
        # In the tokens' precision, as the two products want it.
        grad = x.new_empty(batch, tokens, len(grads), heads, width)
        for place, part in enumerate(grads):
            grad[:, :, place] = rearrange(part, "h b t w -> b t h w")
        grad = grad.flatten(2).flatten(0, 1)
        # Under autocast, tokens of half precision meet weights of float32.
        grad_x = grad @ weight.to(x.dtype)
        return grad_x.view_as(x), grad.mT @ x.flatten(0, 1), None
