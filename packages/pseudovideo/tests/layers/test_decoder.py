"""The lean decoder gives what the blocks give."""

import pytest
import torch
from torch import Tensor

from pseudovideo.layers import Block, StackDecoder


def stack(dtype: torch.dtype, depth: int = 3, dim: int = 24, num_heads: int = 4) -> list[Block]:
    torch.manual_seed(0)
    blocks = [Block(dim, num_heads, gated=False).to(dtype) for _ in range(depth)]
    with torch.no_grad():  # Fresh norms are the identity; here scales and shifts shall matter.
        for block in blocks:
            for norm in (block.norm_attention, block.norm_feedforward):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.uniform_(-0.5, 0.5)
            block.attention.to_qkv.weight.mul_(4.0)
    return blocks


def through(blocks: list[Block], x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x, causal=True)
    return x


@torch.no_grad()
def stepwise(blocks: list[Block], x: Tensor) -> Tensor:
    decoder = StackDecoder(blocks, x.shape[0], x.shape[1])
    return torch.stack([decoder.step(token.clone()).clone() for token in x.unbind(1)], dim=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_give_what_the_blocks_give_of_the_whole(
    dtype: torch.dtype, tolerance: float, batch: int
) -> None:
    blocks = stack(dtype)
    x = torch.randn(batch, 9, 24, generator=torch.Generator().manual_seed(1), dtype=dtype)
    found = stepwise(blocks, x)
    torch.testing.assert_close(found, through(blocks, x), rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_a_step_overwrites_what_it_was_given_and_not_the_weights() -> None:
    blocks = stack(torch.float32)
    before = [parameter.clone() for block in blocks for parameter in block.parameters()]
    x = torch.ones(2, 24)
    decoder = StackDecoder(blocks, 2, 3)
    assert decoder.step(x) is x
    assert decoder.length == 1
    after = [parameter for block in blocks for parameter in block.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@torch.no_grad()
def test_a_full_decoder_and_other_blocks_are_refused() -> None:
    decoder = StackDecoder(stack(torch.float32), 1, 1)
    decoder.step(torch.zeros(1, 24))
    with pytest.raises(ValueError, match="holds 1 tokens"):
        decoder.step(torch.zeros(1, 24))
    for block in (Block(24, 4), Block(24, 4, gated=False, normalize=True)):
        with pytest.raises(ValueError, match="neither gated nor normalised"):
            StackDecoder([block], 1, 1)
