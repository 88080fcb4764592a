"""Attention of decoders against sums over each prefix, and the decoder around it."""

import itertools
import math

import pytest
import torch
from torch import nn

from probseq.metrics import calibration_bins
from probseq.transformers import (
    CausalKernelAttention,
    CausalSoftmaxAttention,
    CausalTransformer,
    SoftmaxAttention,
    TransformerConfig,
    bits_per_token,
    evaluate_tokens,
)

DIM, HEADS, WIDTH = 8, 2, 4


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def plain(module):
    """The module in float64, its output the heads' outputs side by side."""
    module = module.double().eval()
    nn.init.eye_(module.to_out[0].weight)
    nn.init.zeros_(module.to_out[0].bias)
    return module


def data(batch=2, tokens=6):
    return torch.randn(batch, tokens, DIM, generator=seeded(1)).double()


def split(x):
    return x.unflatten(-1, (HEADS, WIDTH))


CASES = list(itertools.product(("rbf", "exponential"), (True, False), ("none", "count", "kernel")))


@pytest.mark.parametrize(("kernel", "symmetric", "normalise"), CASES)
def test_kernel_attention_sums_over_each_prefix(kernel, symmetric, normalise):
    torch.manual_seed(0)
    given = {"kernel": kernel, "symmetric": symmetric, "normalise": normalise}
    layer = plain(CausalKernelAttention(DIM, HEADS, initial_variance=0.6, **given))
    layer.kernel.raw_lengthscale.data.fill_(0.4)
    x = data()
    q, v = split(layer.to_qk(x)), split(layer.to_v(x))
    k = q if layer.to_k is None else split(layer.to_k(x))
    expected = torch.zeros(2, 6, HEADS, WIDTH, dtype=torch.float64)
    ell, variance = layer.kernel.lengthscale[:, 0], layer.kernel.outputscale
    for b, t, h in itertools.product(range(2), range(6), range(HEADS)):
        a, keys = q[b, t, h] / ell[h], k[b, : t + 1, h] / ell[h]
        far = -0.5 * (a - keys).square().sum(-1)
        weights = variance[h] * torch.exp(keys @ a if kernel == "exponential" else far)
        scale = {"none": 1.0, "count": 1.0 / (t + 1), "kernel": 1.0 / weights.sum()}[normalise]
        expected[b, t, h] = scale * weights @ v[b, : t + 1, h]
    torch.testing.assert_close(layer(x).values, expected.flatten(-2))


@pytest.mark.parametrize(("kernel", "symmetric", "normalise"), CASES)
def test_all_that_is_learned_has_a_gradient(kernel, symmetric, normalise):
    layer = CausalKernelAttention(
        DIM, HEADS, kernel=kernel, symmetric=symmetric, normalise=normalise
    )
    layer(data().float()).values.sum().backward()
    assert all(p.grad is not None for p in layer.parameters() if p.requires_grad)


def test_the_exponential_kernel_normalised_by_itself_is_softmax_attention():
    torch.manual_seed(0)
    softmax = plain(CausalSoftmaxAttention(DIM, HEADS))
    given = {"kernel": "exponential", "normalise": "kernel"}
    layer = plain(CausalKernelAttention(DIM, HEADS, **given))
    layer.kernel.raw_lengthscale.data.fill_(0.25 * math.log(WIDTH))  # ℓ² = √d
    with torch.no_grad():
        parts = softmax.to_qkv.weight.chunk(3)
        for own, weight in zip((layer.to_qk, layer.to_k, layer.to_v), parts, strict=True):
            own.weight.copy_(weight)
    torch.testing.assert_close(layer(data()).values, softmax(data()).values)


def test_the_last_token_of_a_decoder_is_that_of_an_encoder():
    torch.manual_seed(0)
    causal, whole = plain(CausalSoftmaxAttention(DIM, HEADS)), plain(SoftmaxAttention(DIM, HEADS))
    whole.load_state_dict(causal.state_dict())
    x = data()
    for t in range(1, 7):
        torch.testing.assert_close(causal(x).values[:, t - 1], whole(x[:, :t]).values[:, -1])


MAKERS = {
    "softmax": lambda index: CausalSoftmaxAttention(DIM, HEADS),
    "rbf": lambda index: CausalKernelAttention(DIM, HEADS),
    "exponential": lambda index: CausalKernelAttention(
        DIM, HEADS, kernel="exponential", normalise="kernel", initial_variance=1.0
    ),
}


def decoder(name="softmax", max_length=300):
    torch.manual_seed(0)
    config = TransformerConfig(depth=2, dim=DIM, num_heads=HEADS, hidden_dim=12, dropout=0.0)
    sizes = {"vocab_size": 7, "max_length": max_length}
    return CausalTransformer(config, **sizes, attention=MAKERS[name]).double().eval()


def ids(length=9, batch=2):
    return torch.randint(7, (batch, length), generator=seeded(2))


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_steps_are_the_parallel_pass_also_across_blocks(name):
    model, tokens = decoder(name), ids(300)
    whole = model(tokens).logits
    cache, found, place = model.init_cache(2), [], 0
    for new in (1, 2, 255, 1, 41):
        output, cache = model.step(tokens[:, place : place + new], cache)
        place += new
        found.append(output.logits)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_padding_on_the_left_and_on_the_right_changes_nothing(name):
    model, tokens = decoder(name), ids()
    expected = model(tokens).logits
    right = torch.cat((tokens, torch.zeros(2, 3, dtype=torch.long)), 1)
    torch.testing.assert_close(model(right).logits[:, :9], expected, rtol=0, atol=1e-12)
    left = torch.cat((torch.zeros(2, 3, dtype=torch.long), tokens), 1)
    mask = torch.arange(12).expand(2, 12) >= 3
    torch.testing.assert_close(model(left, mask).logits[:, 3:], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_steps_keep_no_graph_of_the_tokens_before(name):
    model = decoder(name)
    output, cache = model.step(ids(), model.init_cache(2))
    assert not output.logits.requires_grad
    assert not any(tensor.requires_grad for layer in cache.layers for tensor in layer[:2])


@torch.no_grad()
def test_layers_that_draw_nothing_take_samples_and_noise():
    model, tokens = decoder(), ids()
    drawn = model(tokens, num_samples=3, noise=[None, None]).logits
    torch.testing.assert_close(drawn, model(tokens).logits.expand(3, -1, -1, -1))


@torch.no_grad()
def test_generated_tokens_follow_the_distribution_of_the_next_one():
    model, tokens = decoder(), ids(4, 1)
    model.to_logits.weight.mul_(8.0)
    probs = (model(tokens).logits[0, -1] / 2.0).softmax(-1)
    many = model.generate(tokens.expand(4000, -1), 1, temperature=2.0, generator=seeded(0))
    share = many[:, -1].bincount(minlength=7) / 4000
    assert (share - probs).abs().max() < 4 * 0.5 / math.sqrt(4000)
    longer = model.generate(tokens, 5, generator=seeded(0))
    assert longer.shape == (1, 9)
    assert torch.equal(longer[:, :4], tokens)


def test_bits_are_those_of_the_mean_probability():
    logits = torch.randn(3, 2, 5, 7, generator=seeded(0)).double()
    tokens = ids(5)
    probs = logits.softmax(-1).mean(0)
    expected = -probs.gather(-1, tokens[..., None])[..., 0].log2()
    torch.testing.assert_close(bits_per_token(logits, tokens), expected, rtol=1e-12, atol=0)
    single = logits[0].softmax(-1).gather(-1, tokens[..., None])[..., 0]
    found = bits_per_token(logits[0], tokens)
    torch.testing.assert_close(found, -single.log2(), rtol=1e-12, atol=0)


def test_a_decoder_is_measured_as_by_hand_in_batches_of_any_size(monkeypatch):
    model, tokens = decoder(), ids(6, batch=5)
    found = evaluate_tokens(model, tokens)
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    assert found.bits == pytest.approx(float(bits_per_token(logits, tokens[:, 1:]).mean()))
    assert found.accuracy == float((logits.argmax(-1) == tokens[:, 1:]).double().mean())
    bins = calibration_bins(logits.softmax(-1).flatten(0, 1), tokens[:, 1:].flatten())
    assert found.ece == pytest.approx(float(bins.expected_error()))
    assert found.kl == 0.0
    monkeypatch.setattr("probseq.transformers.decoder._PROBABILITIES", 2 * 6 * 7)
    again = evaluate_tokens(model, tokens)
    assert again[:4] == pytest.approx(found[:4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CausalKernelAttention(8, 2, normalise="sum"), "normalise"),
        (lambda: decoder()(ids(301)), "with at most 300 tokens"),
        (lambda: decoder()(ids() + 1), "tokens must be from 0 to 6"),
        (lambda: decoder()(ids(2), torch.tensor([[True, False]] * 2)), "padding on the left"),
        (lambda: decoder().generate(ids(), 0), "num_tokens"),
        (lambda: decoder().generate(ids(), 5, temperature=0.0), "temperature"),
        (lambda: decoder().generate(ids(), 299), "with at most 300 tokens"),
        (lambda: decoder().init_cache(0), "batch"),
        (lambda: decoder().init_cache(2, noise=[]), "noise must have one entry for each of the 2"),
        (lambda: decoder()(ids(), noise=[None] * 3), "one entry for each of the 2 layers"),
        (lambda: decoder().step(ids(4), decoder().init_cache(2, 3)), "max_tokens must be at least"),
        (lambda: decoder().step(ids(4, 1), decoder().init_cache(2)), "cache's 2 sequences, got 1"),
        (
            lambda: CausalTransformer(
                TransformerConfig(depth=1, dim=8, num_heads=2, hidden_dim=8),
                vocab_size=3,
                max_length=3,
                attention=lambda index: SoftmaxAttention(8, 2),
            ),
            "attention must be causal, with a cache, got SoftmaxAttention",
        ),
    ],
)
def test_senseless_arguments_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
