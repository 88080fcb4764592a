"""Attention against loops over heads and tokens."""

import math

import pytest
import torch
from torch import Tensor

from pseudovideo.layers.block import Attention, Block


def tokens(b: int, n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, n, d, generator=generator, dtype=torch.float64)


def attention(dim: int = 12, num_heads: int = 3, *, normalize: bool = False) -> Attention:
    torch.manual_seed(1)
    layer = Attention(dim, num_heads, normalize=normalize).double()
    if normalize:
        with torch.no_grad():
            for norm in (layer.norm_q, layer.norm_k):
                norm.weight.copy_(torch.rand(dim // num_heads) + 0.5)
    return layer


@torch.no_grad()
def by_loops(layer: Attention, x: Tensor, allowed: Tensor) -> Tensor:
    """softmax(q·k/√c) v over the allowed pairs, one head and one token at a time."""
    b, n, d = x.shape
    c = d // layer.num_heads
    w_q, w_k, w_v = layer.to_qkv.weight.split(d)
    out = torch.zeros_like(x)
    for s in range(b):
        for h in range(layer.num_heads):
            part = slice(h * c, (h + 1) * c)
            q, k, v = x[s] @ w_q[part].T, x[s] @ w_k[part].T, x[s] @ w_v[part].T
            if layer.normalize:
                q = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm_q.weight
                k = k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm_k.weight
            for i in range(n):
                seen = [j for j in range(n) if allowed[i, j]]
                scores = [float(q[i] @ k[j]) / math.sqrt(c) for j in seen]
                weights = [math.exp(a) for a in scores]
                for j, weight in zip(seen, weights, strict=True):
                    out[s, i, part] += weight / sum(weights) * v[j]
    return out @ layer.to_out.weight.T + layer.to_out.bias


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_loops(normalize: bool, causal: bool) -> None:
    layer, x = attention(normalize=normalize), tokens(2, 5, 12)
    everything = torch.ones(5, 5, dtype=torch.bool)
    expected = by_loops(layer, x, everything.tril() if causal else everything)
    torch.testing.assert_close(layer(x, causal=causal), expected, rtol=1e-10, atol=1e-10)


def test_later_tokens_have_no_gradient_at_all_in_causal_attention() -> None:
    layer, x = attention(), tokens(1, 6, 12).requires_grad_()
    direction = tokens(1, 3, 12, seed=4)
    (gradient,) = torch.autograd.grad((layer(x, causal=True)[:, :3] * direction).sum(), x)
    assert torch.equal(gradient[:, 3:], torch.zeros_like(gradient[:, 3:]))
    assert (gradient[:, :3].abs() > 0).all()


def test_without_order_attention_follows_a_permutation_of_its_tokens() -> None:
    layer, x = attention(normalize=True), tokens(2, 6, 12)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_normalised_queries_and_keys_forget_the_scale_of_their_weights() -> None:
    layer, x = attention(normalize=True), tokens(2, 5, 12)
    before = layer(x)
    with torch.no_grad():
        layer.to_qkv.weight[:24] *= 100.0
    # The 1e-6 in the root mean square is all that tells them apart.
    torch.testing.assert_close(layer(x), before, rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads must divide dim=12, got 5"):
        Block(12, 5)


def test_under_autocast_normalised_attention_neither_warns_nor_drifts() -> None:
    layer, x = attention(normalize=True).float(), tokens(2, 5, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)
    torch.testing.assert_close(found.float(), layer(x), rtol=5e-2, atol=2e-2)
