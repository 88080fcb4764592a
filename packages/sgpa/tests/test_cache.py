"""Evaluation mode reuses what the parameters alone decide, and never what they decided before."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import sgpa.attention
from probseq.testing.instruments import constant_noise
from probseq.transformers import TokenMap, vision_transformer
from sgpa import CIFAR10, SparseGPAttention
from sgpa.cache import ParameterCache


@pytest.fixture
def layer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SparseGPAttention(6, 3, 4).double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def computed(monkeypatch):
    """Grows by one entry whenever the global terms are computed."""
    calls, original = [], sgpa.attention.global_terms

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(sgpa.attention, "global_terms", counted)
    return calls


def evaluate(layer, x, **kwargs):
    with constant_noise(1.0), torch.no_grad():
        return layer(x, **kwargs)


def uncached(layer, x, **kwargs):
    # Where gradients are taken, products may be other calls: equal but for rounding.
    with constant_noise(1.0):
        out = layer(x, **kwargs)
    return out.values.detach(), out.penalty.detach()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_terms_are_computed_once_and_equal_the_uncached_ones(layer, x, computed, context):
    with context():
        outputs = [evaluate(layer, x) for _ in range(3)]
    assert len(computed) == 1
    for out in outputs:
        assert_close(tuple(out), uncached(layer, x))


def test_gradients_and_training_mode_compute_afresh(layer, x, computed):
    evaluate(layer, x)
    layer(x)
    layer.train()
    with torch.no_grad():
        layer(x)
        layer(x)
    assert len(computed) == 4


def test_terms_of_inference_mode_serve_later_passes(layer, x, computed):
    with torch.inference_mode():
        layer(x)
    out = evaluate(layer, x)
    assert len(computed) == 1
    # A value made in inference mode could not be part of a graph.
    assert_close(tuple(out), uncached(layer, x))


@pytest.mark.parametrize(
    "name",
    [
        "inducing_inputs",
        "inducing_mean",
        "raw_inducing_factor",
        "to_qk.weight",
        "kernel.raw_lengthscale",
        "kernel.raw_outputscale",
    ],
)
def test_a_change_of_any_parameter_drops_the_terms(layer, x, name):
    before = evaluate(layer, x)
    with torch.no_grad():
        layer.get_parameter(name).mul_(1.5).add_(0.1)
    after = evaluate(layer, x)
    assert not torch.allclose(before.values, after.values)
    assert_close(tuple(after), uncached(layer, x))


def test_an_optimizer_step_drops_the_terms(layer, x):
    evaluate(layer, x)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(x).penalty.backward()
    optimizer.step()
    assert_close(tuple(evaluate(layer, x)), uncached(layer, x))


@pytest.mark.parametrize("assign", [False, True])
def test_loading_a_state_dict_drops_the_terms(layer, x, assign):
    evaluate(layer, x)
    other = {name: value + 0.1 for name, value in layer.state_dict().items()}
    layer.load_state_dict(other, assign=assign)
    assert_close(tuple(evaluate(layer, x)), uncached(layer, x))


def test_a_new_tensor_at_the_address_of_an_old_one_is_not_taken_for_it():
    # Freed memory is handed out again: equal addresses must not make equal keys.
    cache = ParameterCache()

    def remember(number):
        tensor = torch.full((1 << 20,), float(number))
        return cache.get(lambda: float(tensor[0]), lambda: [tensor], fresh=False)

    with torch.no_grad():
        found = [remember(number) for number in range(10)]
    assert found == list(range(10))


def test_a_parameter_of_the_token_map_drops_the_terms(layer, x, computed):
    linear = nn.Linear(6, 6).double().eval()
    token_map = TokenMap(linear, (linear,))
    before = evaluate(layer, x, token_map=token_map)
    evaluate(layer, x, token_map=token_map)
    assert len(computed) == 1
    with torch.no_grad():
        linear.weight.mul_(2)
    after = evaluate(layer, x, token_map=token_map)
    assert not torch.allclose(before.values, after.values)
    assert_close(tuple(after), uncached(layer, x, token_map=token_map))
    without = evaluate(layer, x)
    assert_close(tuple(without), uncached(layer, x))


def test_switching_modes_drops_the_terms_even_after_a_write_through_data(layer, x):
    evaluate(layer, x)
    layer.inducing_mean.data.mul_(2)
    layer.train().eval()
    assert_close(tuple(evaluate(layer, x)), uncached(layer, x))


def test_active_dropout_in_the_token_map_is_drawn_anew(layer, x):
    dropout = nn.Dropout(0.5)
    token_map = TokenMap(dropout, (dropout,))
    layer.eval()
    dropout.train()
    first, second = (evaluate(layer, x, token_map=token_map).values for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_independent(layer, x, copied):
    before = evaluate(layer, x)
    twin = copied(layer)
    with torch.no_grad():
        twin.inducing_mean.mul_(2)
    assert_close(tuple(evaluate(twin, x)), uncached(twin, x))
    assert_close(tuple(evaluate(layer, x)), tuple(before), rtol=0, atol=0)


def test_the_cache_is_no_part_of_the_state_dict(layer, x):
    names = layer.state_dict().keys()
    evaluate(layer, x)
    assert layer.state_dict().keys() == names
    assert all(not isinstance(value, ParameterCache) for value in layer.state_dict().values())


def test_moving_to_another_dtype_drops_the_terms(layer, x):
    evaluate(layer, x)
    layer.float()
    out = evaluate(layer, x.float())
    assert out.values.dtype == torch.float32
    assert_close(tuple(out), uncached(layer, x.float()), rtol=1e-4, atol=1e-4)


def test_a_transformer_in_evaluation_mode_computes_one_set_of_terms_a_layer(computed):
    model = vision_transformer(
        *CIFAR10, image_size=8, patch_size=4, channels=1, num_classes=3
    ).eval()
    images = torch.zeros(2, 1, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            model(images, num_samples=2)
    assert len(computed) == CIFAR10.backbone.depth
