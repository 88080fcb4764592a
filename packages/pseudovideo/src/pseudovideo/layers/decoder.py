"""A stack of causal blocks, one token at a time, in as few calls as it takes.

At this size a token costs less arithmetic than the bookkeeping of modules. So the weights are
gathered once per sequence, laid out as the products read them, and the keys and values of all
layers lie in one buffer that is sliced once per token.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from pseudovideo.layers.block import Block

_ROOT_HALF = 0.5**0.5


class _Weights(NamedTuple):
    """One block's; matrices are (in, out) and hold the scales named in `_gather`."""

    norm_attention: tuple[Tensor, Tensor]
    to_qkv: Tensor
    to_out: Tensor
    out_bias: Tensor
    norm_feedforward: tuple[Tensor, Tensor]
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor


class StackDecoder:
    """The next token's `for block in blocks: x = block(x, causal=True)`, from a cache.

    Holds copies of the weights: build one for each batch of b sequences of at most `max_length`
    tokens. Blocks are plain ones, neither gated nor with normalised queries.
    """

    def __init__(self, blocks: Sequence[Block], batch_size: int, max_length: int) -> None:
        check_counts(batch_size=batch_size, max_length=max_length)
        self._layers = [_gather(block) for block in blocks]
        heads = blocks[0].attention.num_heads
        weight = self._layers[0].to_out
        shape = (len(blocks), 2, batch_size, heads, max_length, len(weight) // heads)
        # (layer, key or value, sequence, head, token, channel)
        self._cache = weight.new_empty(shape)
        self.length = 0

    def step(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """Pass the next token of each sequence through the stack, in place of `x`."""
        _, _, batch, heads, max_length, channels = self._cache.shape
        if x.shape != (batch, heads * channels) or x.dtype != self._cache.dtype:
            raise ValueError(
                f"x must be {self._cache.dtype} of shape {(batch, heads * channels)}, got "
                f"{x.dtype} of shape {tuple(x.shape)}"
            )
        if self.length == max_length:
            raise ValueError(f"the decoder holds {max_length} tokens, and all have been seen")
        slots = self._cache[..., self.length, :].unbind(0)
        self.length += 1
        cached = self._cache.flatten(2, 3)[:, :, :, : self.length]
        keys, values = cached[:, 0].transpose(2, 3).unbind(0), cached[:, 1].unbind(0)
        width = x.shape[-1:]
        for layer, slot, k, v in zip(self._layers, slots, keys, values, strict=True):
            h = torch.layer_norm(x, width, *layer.norm_attention)
            qkv = torch.mm(h, layer.to_qkv).view(batch, 3, heads, channels)
            slot.copy_(qkv[:, 1:].transpose(0, 1))
            q = qkv[:, 0].reshape(batch * heads, 1, channels)
            attended = torch.bmm(torch.bmm(q, k).softmax(-1), v).view(batch, -1)
            x.addmm_(attended, layer.to_out).add_(layer.out_bias)
            h = torch.layer_norm(x, width, *layer.norm_feedforward)
            h = torch.addmm(layer.inner_bias, h, layer.inner)
            x.addmm_(torch.addcmul(h, h, h.erf()), layer.outer).add_(layer.outer_bias)
        return x


def _gather(block: Block) -> _Weights:
    """Transpose a block's weights, and put into them what else were products of their own.

    The queries take the 1/√c of attention. GELU(h) = (h + h·erf(h/√2))/2, so with h/√2 out of the
    inner map it is a third of the calls: √½·(g + g·erf g) for g = h/√2, and the outer map takes √½.
    """
    attention, feedforward = block.attention, block.feedforward
    if feedforward.gated or attention.normalize:
        raise ValueError("blocks must be neither gated nor normalised, to be decoded in steps")
    dim = len(attention.to_out.weight)
    scales = torch.ones_like(attention.to_qkv.weight[:, :1])
    scales[:dim] = (dim // attention.num_heads) ** -0.5
    return _Weights(
        norm_attention=(block.norm_attention.weight, block.norm_attention.bias),
        to_qkv=(attention.to_qkv.weight * scales).t().contiguous(),
        to_out=attention.to_out.weight.t().contiguous(),
        out_bias=attention.to_out.bias,
        norm_feedforward=(block.norm_feedforward.weight, block.norm_feedforward.bias),
        inner=(feedforward.inner.weight * _ROOT_HALF).t().contiguous(),
        inner_bias=feedforward.inner.bias * _ROOT_HALF,
        outer=(feedforward.outer.weight * _ROOT_HALF).t().contiguous(),
        outer_bias=feedforward.outer.bias,
    )
