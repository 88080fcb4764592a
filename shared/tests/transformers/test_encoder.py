"""The stack of blocks, pooling and the settings."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probseq.transformers import (
    AttentionOutput,
    Encoder,
    Pooling,
    SoftmaxAttention,
    TransformerConfig,
    repeat_samples,
    without_attention,
)


def settings(**changes):
    return TransformerConfig(**{"depth": 3, "dim": 4, "num_heads": 2, "hidden_dim": 6, **changes})


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@dataclass
class Call:
    x: torch.Tensor
    mask: torch.Tensor | None
    token_map: object
    num_samples: int | None


class Recorder(nn.Module):
    """Linear, plus noise if stochastic; remembers how it was called. Its penalty is its number."""

    def __init__(self, number, stochastic=False):
        super().__init__()
        self.number, self.stochastic, self.calls = number, stochastic, []
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, token_map=None, generator=None, num_samples=None):
        self.calls.append(Call(x, mask, token_map, num_samples))
        values = self.linear(x)
        if num_samples is not None:
            values = repeat_samples(values, num_samples)
        if self.stochastic:
            noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            values = values + noise
        return AttentionOutput(values, x.new_tensor(10.0**self.number))


def make_encoder(config, stochastic=()):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = Encoder(config, lambda index: Recorder(index, index in stochastic)).double()
        for norm in encoder.norms:
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)
    return encoder.eval()


@pytest.mark.parametrize("shared_norm", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_a_loop_and_token_maps_are_what_the_tokens_went_through(norm, shared_norm):
    encoder = make_encoder(settings(norm=norm, shared_norm=shared_norm))
    norms = list(encoder.norms)
    assert len(norms) == (1 if shared_norm else 6)
    norms = norms * 6 if shared_norm else norms
    x, mask = draw(2, 5, 4), torch.arange(5).expand(2, 5) < 3
    out, penalty = encoder(x, mask)
    assert penalty.item() == 111.0
    written = None
    for index, attention in enumerate(encoder.attention):
        first, second, mlp = norms[2 * index], norms[2 * index + 1], encoder.feedforward[index]
        (call,) = attention.calls
        assert call.mask is mask
        inputs = first(x) if norm == "pre" else x
        assert_close(call.x, inputs)
        if index == 0:
            assert call.token_map is None
        else:
            assert_close(call.token_map(written), inputs)
        x = x + attention.linear(inputs)
        if norm == "post":
            x = first(x)
        written = x  # where the next block's inducing inputs live
        x = x + mlp(second(x)) if norm == "pre" else second(x + mlp(x))
    assert_close(out, x)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_token_map_names_every_parameter_that_it_depends_on(norm):
    encoder = make_encoder(settings(norm=norm))
    encoder(draw(1, 2, 4))
    token_map = encoder.attention[1].calls[0].token_map
    named = {id(parameter) for parameter in token_map.parameters()}
    parameters = list(encoder.parameters())
    found = torch.autograd.grad(
        token_map(draw(3, 4)).sin().sum(), parameters, allow_unused=True, materialize_grads=False
    )
    used = {id(p) for p, gradient in zip(parameters, found, strict=True) if gradient is not None}
    assert used
    assert used <= named


def test_a_token_map_knows_whether_dropout_may_be_active():
    encoder = make_encoder(settings())
    encoder(draw(1, 2, 4))
    token_map = encoder.attention[1].calls[0].token_map
    assert not token_map.training
    encoder.feedforward[0][-1].train()
    assert token_map.training


@pytest.mark.parametrize("stochastic", [(), (0,), (1,), (2,), (1, 2)])
def test_samples_are_drawn_from_the_first_stochastic_layer_on(stochastic):
    encoder = make_encoder(settings(), stochastic)
    x, mask = draw(2, 5, 4), torch.arange(5) < torch.tensor([[5], [3]])
    out, _ = encoder(x, mask, num_samples=3)
    assert out.shape == (6, 5, 4)
    first = min(stochastic, default=3)
    for index, attention in enumerate(encoder.attention):
        (call,) = attention.calls
        assert call.num_samples == (3 if index == first else None)
        assert len(call.x) == (2 if index <= first else 6)
        assert torch.equal(call.mask, mask if index <= first else mask.repeat(3, 1))
    samples = out.view(3, 2, 5, 4)
    if stochastic:
        assert (samples[0] - samples[1]).abs().min() > 0
    else:
        assert_close(out, encoder(x, mask)[0].repeat(3, 1, 1), rtol=0, atol=0)


def test_samples_of_a_stochastic_layer_agree_in_law_with_single_passes():
    encoder, x = make_encoder(settings(), (1,)), draw(2, 1, 4)
    generator, many = torch.Generator().manual_seed(0), 4000
    with torch.no_grad():
        folded = encoder(x, num_samples=many, generator=generator)[0].view(many, 2, 4)
        single = encoder(x.repeat(many, 1, 1), generator=generator)[0].view(many, 2, 4)
    # Five standard errors of a difference of means; 12 % is five of a ratio of deviations.
    error = (folded.mean(0) - single.mean(0)).abs()
    assert (error < 5 * (2 / many) ** 0.5 * single.std(0)).all()
    assert_close(folded.std(0), single.std(0), rtol=0.12, atol=0.0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_attention_the_feedforward_networks_are_left(norm):
    encoder, x = make_encoder(settings(norm=norm), (1,)), draw(2, 5, 4)

    def run():
        return encoder(x, generator=torch.Generator().manual_seed(0))

    before, penalty = run()
    expected = x
    for index, mlp in enumerate(encoder.feedforward):
        first, second = encoder.norms[2 * index], encoder.norms[2 * index + 1]
        if norm == "pre":
            expected = expected + mlp(second(expected))
        else:
            expected = second(first(expected) + mlp(first(expected)))
    with without_attention(nn.Sequential(encoder)):
        out, same_penalty = run()
        assert encoder(x, num_samples=3)[0].shape == (6, 5, 4)
    assert_close(out, expected)
    assert same_penalty == penalty
    assert_close(run()[0], before, rtol=0, atol=0)


def test_samples_are_folded_sample_major():
    x = draw(2, 3)
    assert_close(repeat_samples(x, 4).unflatten(0, (4, -1)), x.expand(4, 2, 3))
    with pytest.raises(ValueError, match="num_samples must be a whole number of at least 1, got 0"):
        repeat_samples(x, 0)


@torch.no_grad()
def test_flattened_tokens_keep_their_places_and_padding_is_zero():
    pooling, x = Pooling("flatten", 4, max_tokens=6).double(), draw(2, 5, 4)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    pooled = pooling(x.masked_fill(~mask[..., None], math.nan), mask).unflatten(1, (6, 4))
    assert torch.equal(pooled[0], torch.cat([x[0], torch.zeros(1, 4, dtype=x.dtype)]))
    assert torch.equal(pooled[1], torch.cat([x[1, :3], torch.zeros(3, 4, dtype=x.dtype)]))
    with pytest.raises(ValueError, match="x must have at most max_tokens=6 tokens, got 7"):
        pooling(draw(2, 7, 4))


@pytest.mark.parametrize("kind", ["mean", "sequence", "cls"])
def test_pooling_equals_a_loop_over_real_tokens(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pooling = Pooling(kind, 4).double()
    x = draw(3, 5, 4)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()
    junk = x.masked_fill(~mask[..., None], math.nan)
    for b in range(3):
        real = x[b, mask[b]]
        if kind == "mean":
            expected = real.sum(0) / len(real)
        elif kind == "cls":
            expected = real[0]
        else:
            weights = pooling.score(real).exp()
            expected = (weights * real).sum(0) / weights.sum()
        assert_close(pooling(x, mask)[b], expected)
        assert_close(pooling(real[None])[0], expected)
        if kind != "sequence":
            assert_close(pooling(junk, mask)[b], expected)


@pytest.mark.parametrize("kind", ["mean", "sequence"])
def test_pooling_nothing_but_padding_gives_zeros_and_finite_gradients(kind):
    pooling = Pooling(kind, 4).double()
    x = draw(2, 3, 4).requires_grad_()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    pooled = pooling(x, mask)
    assert torch.equal(pooled[1], torch.zeros(4, dtype=torch.float64))
    for gradient in torch.autograd.grad(pooled.square().sum(), (x, *pooling.parameters())):
        assert gradient.isfinite().all()


def test_sequence_pooling_survives_huge_scores():
    pooling = Pooling("sequence", 4)
    x = 1e4 * draw(1, 3, 4).float()
    winner = int(pooling.score(x).argmax())
    assert_close(pooling(x)[0], x[0, winner])


def test_softmax_attention_equals_torchs_multi_head_attention():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = SoftmaxAttention(8, 2).double()
        theirs = nn.MultiheadAttention(8, 2, batch_first=True, bias=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.to_qkv.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.weight.copy_(ours.to_out[0].weight)
        theirs.out_proj.bias.copy_(ours.to_out[0].bias)
    x, mask = draw(2, 5, 8), torch.arange(5) < torch.tensor([[5], [3]])
    expected, _ = theirs(x, x, x, key_padding_mask=~mask, need_weights=False)
    assert_close(ours(x, mask).values, expected)
    assert_close(ours(x).values, theirs(x, x, x, need_weights=False)[0])
