import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from probseq_apps.baselines.mean_field import MeanFieldLinear, mean_field_model

KINDS = ("vision", "text", "sequence")


def layer_with(*, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(4, 3, bias=bias).double()
    layer = MeanFieldLinear(linear, prior_std=0.7, initial_std=0.1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) - 0.5)
    return layer


def posterior(layer):
    """The layer's weights and biases as independent normals of torch."""
    yield Normal(layer.weight_mean, layer.raw_weight_std.exp())
    if layer.bias_mean is not None:
        yield Normal(layer.bias_mean, layer.raw_bias_std.exp())


def draw_outputs(layer, x, count):
    layer.generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return layer(x.repeat(count, *(1,) * (x.ndim - 1))).unflatten(0, (count, -1))


def test_each_output_has_the_mean_and_variance_of_drawn_weights():
    layer = layer_with()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2)).double()
    weight, bias = posterior(layer)
    draws = draw_outputs(layer, x, 40_000)
    mean = x @ weight.mean.mT + bias.mean
    variance = x.square() @ weight.variance.mT + bias.variance
    torch.testing.assert_close(draws.mean(0), mean, atol=0.05, rtol=0.0)
    torch.testing.assert_close(draws.var(0), variance, atol=0.0, rtol=0.05)


def test_tokens_that_share_their_weights_are_drawn_apart():
    x = torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(3)).double()
    tokens = 16
    layer = layer_with()
    pooled = draw_outputs(layer, x.expand(1, tokens, 4), 20_000).mean(2).var(0)
    weight, bias = posterior(layer)
    exact = x[0].square() @ weight.variance.mT + bias.variance  # equal tokens: that of one
    torch.testing.assert_close(pooled, exact / tokens, atol=0.0, rtol=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["softmax", "kernel", "kernel-asym"])
def test_without_spread_it_is_the_point_estimate_without_dropout(make_model, kind, attention):
    model, inputs = make_model(kind, attention, dropout=0.5)
    expected = copy.deepcopy(model).eval()(inputs).logits
    changed = mean_field_model(model, num_data=10, initial_std=1e-12).train()
    torch.testing.assert_close(changed(inputs).logits, expected)
    samples = changed(inputs, num_samples=4).logits
    torch.testing.assert_close(samples, expected.expand(4, -1, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_linear_layers_of_blocks_and_head_are_random_and_nothing_else(make_model, kind):
    model, _ = make_model(kind, pooling="sequence")
    changed = mean_field_model(model, num_data=10)
    left = [name for name, module in changed.named_modules() if type(module) is nn.Linear]
    assert left == ["model.embed"] * (kind == "sequence")
    assert not any("norm" in name for name, _ in changed.named_parameters() if "raw" in name)


def test_the_penalty_is_the_kl_of_all_weights_an_example(make_model):
    model, inputs = make_model("text", pooling="sequence")
    changed = mean_field_model(model, num_data=50, prior_std=0.3, initial_std=0.2)
    expected = 0.0
    for module in changed.modules():
        if isinstance(module, MeanFieldLinear):
            for q in posterior(module):
                prior = Normal(torch.zeros_like(q.loc), 0.3 * torch.ones_like(q.loc))
                expected = expected + kl_divergence(q, prior).sum()
    torch.testing.assert_close(changed(inputs).penalty, expected / 50)
    torch.testing.assert_close(changed(inputs, num_samples=3).penalty, expected / 50)


def test_inputs_of_zeros_have_finite_gradients():
    layer = layer_with(bias=False)
    x = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    assert all(found.grad.isfinite().all() for found in (x, *layer.parameters()))
