"""Transformers with kernel-eigen-pair attention: the paper's sizes, settings, prediction."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kepsvgp import CIFAR10, CIFAR100, COLA, IMDB, KEPSVGPConfig, KernelEigenPairAttention
from probseq.testing.instruments import constant_noise
from probseq.transformers import (
    BlockContext,
    SoftmaxAttention,
    TransformerConfig,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)

# Depth, width, heads, hidden width, rank, merge, eta and dropout: D.1.
SIZES = {
    "CIFAR10": (CIFAR10, (7, 384, 12, 384, 10, "concatenation", 10.0, 0.1)),
    "CIFAR100": (CIFAR100, (7, 384, 12, 384, 10, "concatenation", 10.0, 0.1)),
    "IMDB": (IMDB, (1, 128, 8, 128, 10, "addition", 10.0, 0.1)),
    "COLA": (COLA, (2, 128, 4, 256, 5, "addition", 1.0, 0.1)),
}
BACKBONE = TransformerConfig(depth=3, dim=8, num_heads=2, hidden_dim=16)


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes_run_and_come_back_from_a_folder(name, tmp_path):
    preset, sizes = SIZES[name]
    config, attention = preset
    given = config.to_dict() | attention.to_dict()
    names = ("depth", "dim", "num_heads", "hidden_dim", "rank", "merge", "eta", "dropout")
    assert tuple(given[field] for field in names) == sizes
    torch.manual_seed(0)
    if attention.merge == "concatenation":
        model = vision_transformer(*preset, image_size=32, patch_size=4, channels=3, num_classes=10)
        inputs, size = torch.randn(2, 3, 32, 32), 64
    else:
        model = text_transformer(*preset, vocab_size=50, max_length=512, num_classes=10)
        inputs, size = torch.randint(1, 50, (2, 20)), 10 if name == "COLA" else 100
    out = model.eval()(inputs, num_samples=2)
    assert out.logits.shape == (2, 2, 10)
    assert out.logits.isfinite().all()
    assert 0 < out.penalty < float("inf")
    *plain, last = model.encoder.attention
    assert isinstance(last, KernelEigenPairAttention)
    assert all(isinstance(module, SoftmaxAttention) for module in plain)
    assert last.projection.shape == (2, config.num_heads, size, attention.rank)
    assert [part.p for part in last.modules() if isinstance(part, nn.Dropout)] == [0.1]
    model.save_pretrained(tmp_path)
    stored = type(model).from_pretrained(tmp_path)
    generator, again = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = model(inputs, generator=generator).logits
    assert torch.equal(stored(inputs, generator=again).logits, expected)


@pytest.mark.parametrize(
    ("layers", "chosen"), [("last", {2}), ("all", {0, 1, 2}), ((0, 2), {0, 2}), ((1,), {1})]
)
def test_any_subset_of_blocks_may_have_it(layers, chosen):
    config = KEPSVGPConfig(rank=2, layers=layers)
    model = text_transformer(BACKBONE, config, vocab_size=9, max_length=6, num_classes=2)
    kinds = [type(module) for module in model.encoder.attention]
    for index, kind in enumerate(kinds):
        assert kind is (KernelEigenPairAttention if index in chosen else SoftmaxAttention)
    settings = json.loads(json.dumps(config.to_dict()))
    assert KEPSVGPConfig.from_dict(settings) == config


@pytest.mark.parametrize("layers", [(), (3,), (-1,), (0, 0)])
def test_unknown_layers_are_refused_by_name(layers):
    with pytest.raises(ValueError, match=r"layers must be .*, got"):
        KEPSVGPConfig(rank=2, layers=layers).build(BlockContext(BACKBONE, 0, 9))


@pytest.mark.parametrize(
    ("changes", "max_tokens", "message"),
    [
        ({"rank": 0}, 9, "rank must be a whole number of at least 1, got 0"),
        ({"rank": 10}, 9, "rank must be at most max_tokens=9, got 10"),
        ({"rank": 5, "projection_tokens": 4}, 9, "rank must be at most projection_tokens=4, got 5"),
        ({"eta": -0.5}, 9, r"eta must be finite and not negative, got -0\.5"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, max_tokens, message):
    with pytest.raises(ValueError, match=message):
        KEPSVGPConfig(**changes).build(BlockContext(BACKBONE, 2, max_tokens))


def test_merging_suits_the_data():
    for fixed, expected in ((True, "Concatenation"), (False, "NoneType")):
        module = KEPSVGPConfig(rank=2).build(BlockContext(BACKBONE, 2, 9, fixed_length=fixed))
        assert type(module.mixing).__name__ == expected


def test_predictions_are_those_of_single_passes_averaged():
    # One backbone pass, then the samples: the same law, checked sample by sample at fixed noise.
    torch.manual_seed(0)
    preset = replace(BACKBONE, depth=2), KEPSVGPConfig(rank=2, layers=(1,))
    model = text_transformer(*preset, vocab_size=9, max_length=6, num_classes=3).double().eval()
    tokens = torch.randint(1, 9, (4, 6), generator=torch.Generator().manual_seed(1))
    passes = []
    hook = model.encoder.attention[0].register_forward_hook(
        lambda module, inputs, output: passes.append(len(inputs[0]))
    )
    generator = torch.Generator().manual_seed(2)
    found = predict_probabilities(model, tokens, num_samples=5, generator=generator)
    hook.remove()
    assert passes == [4]  # the softmax block sees each sequence once
    # The stochastic block's draws, five times four, in the order in which it takes them.
    noise = torch.randn(
        5, 4, 2, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    logits = torch.stack([single_pass(model, tokens, noise[s]) for s in range(5)])
    assert_close(found, logits.softmax(-1).mean(0))
    with constant_noise(0.0):
        mean = predict_probabilities(model, tokens, num_samples=2)
        assert_close(mean, model(tokens).logits.detach().softmax(-1))


@torch.no_grad()
def single_pass(model, tokens, noise):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", lambda empty, **_: noise.view(empty.shape))
        return model(tokens).logits
