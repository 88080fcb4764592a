"""Blocks and their position-wise networks, written out."""

import math

import pytest
import torch
from torch import Tensor, nn

from pseudovideo.layers.block import Block, GatedFeedForward


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return scaled * norm.weight + norm.bias


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_plain_network_is_two_maps_with_a_gelu_between(x: Tensor) -> None:
    net = GatedFeedForward(12, gated=False).double()
    hidden = gelu(x @ net.inner.weight.T + net.inner.bias)
    torch.testing.assert_close(net(x), hidden @ net.outer.weight.T + net.outer.bias)


def test_the_gated_network_multiplies_the_first_half_by_the_gelu_of_the_second(x: Tensor) -> None:
    net = GatedFeedForward(12).double()
    value, gate = (x @ net.inner.weight.T + net.inner.bias).split(32, dim=-1)
    expected = (value * gelu(gate)) @ net.outer.weight.T + net.outer.bias
    torch.testing.assert_close(net(x), expected)


def test_both_networks_have_about_eight_dim_squared_weights() -> None:
    for gated in (False, True):
        count = sum(p.numel() for p in GatedFeedForward(144, gated=gated).parameters())
        assert count == pytest.approx(8 * 144**2, rel=0.01)


@pytest.mark.parametrize(("dim", "hidden"), [(12, 32), (16, 48), (144, 384), (512, 1368)])
def test_the_gated_width_is_eight_thirds_rounded_up_to_a_multiple_of_eight(
    dim: int, hidden: int
) -> None:
    net = GatedFeedForward(dim)
    assert net.inner.out_features == 2 * hidden
    assert net.outer.in_features == hidden
    assert hidden % 8 == 0
    assert 0 <= hidden - 8 * dim / 3 < 8


def test_a_block_normalises_before_each_part_and_adds_what_the_part_gives(x: Tensor) -> None:
    torch.manual_seed(1)
    block = Block(12, 3, gated=False).double()
    with torch.no_grad():
        for norm in (block.norm_attention, block.norm_feedforward):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    middle = x + block.attention(normalised(block.norm_attention, x), causal=True)
    expected = middle + block.feedforward(normalised(block.norm_feedforward, middle))
    torch.testing.assert_close(block(x, causal=True), expected)
    assert not torch.allclose(block(x), expected)
