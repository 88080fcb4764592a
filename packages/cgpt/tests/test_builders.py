"""Transformers with correlated GP attention: the paper's sizes, settings, and one small fit."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cgpt import (
    CIFAR10,
    CIFAR10_SPARSE,
    COLA,
    COLA_SPARSE,
    CGPTConfig,
    CorrelatedGPAttention,
    SparseCorrelatedGPAttention,
    alpha_schedule,
    penalised_loss,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)

# Depth, width, heads, hidden width, inducing inputs, σ and pooling: section 5.1.
SIZES = {
    "CIFAR10": (CIFAR10, (5, 128, 4, 128, None, 0.1, "sequence")),
    "CIFAR10_SPARSE": (CIFAR10_SPARSE, (5, 128, 4, 128, 16, 0.1, "sequence")),
    "COLA": (COLA, (2, 128, 4, 256, None, 0.1, "mean")),
    "COLA_SPARSE": (COLA_SPARSE, (2, 128, 4, 256, 5, 0.5, "mean")),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes_run(name):
    config, sizes = SIZES[name]
    names = ("depth", "dim", "num_heads", "hidden_dim", "num_inducing", "noise", "pooling")
    assert tuple(getattr(config, field) for field in names) == sizes
    torch.manual_seed(0)
    if name.startswith("CIFAR10"):
        model = vision_transformer(config, image_size=32, patch_size=4, channels=3, num_classes=10)
        inputs = torch.randn(2, 3, 32, 32)
    else:
        model = text_transformer(config, vocab_size=50, max_length=20, num_classes=10)
        inputs = torch.randint(1, 50, (2, 20))
    with torch.no_grad():
        out = model.eval()(inputs, num_samples=2)
    assert out.logits.shape == (2, 2, 10)
    assert out.logits.isfinite().all()
    assert (out.logits[0] - out.logits[1]).abs().max() > 1e-3  # the samples differ
    assert out.penalty.isfinite()
    kind = SparseCorrelatedGPAttention if config.method == "sparse" else CorrelatedGPAttention
    assert sum(isinstance(m, kind) for m in model.modules()) == config.depth


@pytest.mark.parametrize(
    "changes",
    [
        {"conditional": "exact", "nugget": 0.2},
        {"regulariser": "jensen", "canonical_prior": "noisy", "sample_in_training": True},
        {"method": "sparse", "num_inducing": 3, "num_key_inducing": 2, "conditional": "fitc"},
        {"method": "sparse", "num_inducing": 3, "inducing": "mixed", "regulariser": "marginals"},
    ],
)
def test_settings_reach_the_attention(changes):
    config = replace(COLA, noise=0.2, dropout=0.3, **changes)
    module = config.attention(9)
    assert torch.allclose(torch.as_tensor(module.noise), torch.tensor(0.2))
    assert module.to_out[1].p == 0.3
    assert module.regulariser == config.regulariser
    assert module.canonical_prior == config.canonical_prior
    assert module.sample_in_training == config.sample_in_training
    if config.method == "full":
        assert (module.to_latent is None) == (config.conditional == "exact")
        assert module.nugget == changes.get("nugget", 0.01)
    else:
        assert module.conditional == changes.get("conditional", "sor")
        tokens = torch.randn(1, 10, 128)
        if config.inducing == "mixed":
            with pytest.raises(ValueError, match="9"):
                module(tokens)
        else:
            assert module(tokens).values.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sparse"}, "num_inducing must be given with method='sparse', got None"),
        ({"num_inducing": 3}, "num_inducing means nothing to method='full' .* got 3"),
        ({"num_key_inducing": 3}, "num_key_inducing means nothing to method='full'"),
        ({"inducing": "mixed"}, "inducing means nothing to method='full' and must be 'free'"),
        ({"conditional": "fitc"}, r"conditional must be one of \('nystrom', 'exact'\), got 'fitc'"),
        (
            {"method": "sparse", "num_inducing": 3, "conditional": "exact"},
            r"conditional must be one of \('sor', 'fitc'\), got 'exact'",
        ),
        ({"method": "sparse", "num_inducing": 3, "nugget": 0.1}, "nugget means nothing to method="),
    ],
)
def test_settings_that_do_not_go_together_are_refused_at_construction(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CIFAR10, **changes)


def test_an_unknown_method_is_refused_at_construction():
    with pytest.raises(
        ValueError, match=r"method must be one of \('full', 'sparse'\), got 'dense'"
    ):
        replace(CIFAR10, method="dense")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (CIFAR10, {"noise": 0.0}, "noise must be positive.* got 0.0"),
        (COLA_SPARSE, {"noise": -1.0}, "noise must be positive.* got -1.0"),
        (CIFAR10, {"nugget": 0.0}, "nugget must be positive.* got 0.0"),
        (CIFAR10, {"jitter": math.nan}, "jitter must be .* got nan"),
        (COLA_SPARSE, {"num_inducing": 0}, "num_inducing must be a whole number .* got 0"),
        (COLA_SPARSE, {"num_key_inducing": 0}, "num_key_inducing must be a whole number .* got 0"),
        (COLA_SPARSE, {"inducing": "other"}, "inducing must be one of .* got 'other'"),
        (CIFAR10, {"regulariser": "none"}, "regulariser must be one of .* got 'none'"),
        (CIFAR10, {"canonical_prior": "none"}, "canonical_prior must be one of .* got 'none'"),
        (CIFAR10, {"conditional": "exact", "regulariser": "jensen"}, "must be 'joint' or"),
        (CIFAR10, {"conditional": "exact", "canonical_prior": "noisy"}, "must be 'joint' or"),
    ],
)
def test_settings_out_of_range_are_refused_at_construction(config, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


def test_settings_survive_a_dictionary():
    for config in (COLA, COLA_SPARSE):
        assert CGPTConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="unknown setting 'sigma'"):
        CGPTConfig.from_dict(COLA.to_dict() | {"sigma": 3})


def test_the_last_token_of_mixed_inducing_inputs_may_be_the_class_token():
    config = replace(
        COLA_SPARSE, depth=1, dim=4, num_heads=2, hidden_dim=4, inducing="mixed", pooling="cls"
    )
    image = vision_transformer(config, image_size=4, patch_size=2, channels=1, num_classes=2)
    text = text_transformer(config, vocab_size=5, max_length=6, num_classes=2)
    assert image(torch.randn(2, 1, 4, 4)).logits.isfinite().all()
    assert text(torch.ones(2, 6, dtype=torch.long)).logits.isfinite().all()


def bars(count, seed):
    """Noisy images of one bar, horizontal (0) or vertical (1), anywhere."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    for image, label in zip(images[:, 0], labels, strict=True):
        at = int(torch.randint(0, 8, (), generator=generator))
        bar = image[at] if label == 0 else image[:, at]
        bar += 1.0
    return images, labels


@pytest.mark.parametrize("method", ["full", "sparse"])
def test_a_small_fit_lowers_the_loss_and_beats_chance(method):
    torch.manual_seed(0)
    config = CGPTConfig(
        depth=2,
        dim=16,
        num_heads=2,
        hidden_dim=32,
        method=method,
        num_inducing=6 if method == "sparse" else None,
        dropout=0.0,
    )
    model = vision_transformer(config, image_size=8, patch_size=2, channels=1, num_classes=2)
    images, labels = bars(256, seed=1)
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses, penalties, steps = [], [], 50
    for step in range(steps):
        batch = torch.randint(0, 256, (32,), generator=generator)
        out = model(images[batch], generator=generator)
        parts = penalised_loss(
            -F.cross_entropy(out.logits, labels[batch], reduction="none"),
            out.penalty,
            alpha=1e-4 * alpha_schedule(step / steps),
        )
        optimizer.zero_grad()
        parts.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(parts.nll.item())
        penalties.append(parts.penalty.item())
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert penalties[-1] < max(penalties)
    tests, truth = bars(200, seed=3)
    probabilities = predict_probabilities(model.eval(), tests, generator=generator)
    accuracy = (probabilities.argmax(-1) == truth).double().mean()
    assert accuracy > 0.8


@pytest.mark.parametrize("patch_size", [0, -2])
def test_impossible_patches_are_refused_by_name(patch_size):
    with pytest.raises(ValueError, match="patch_size must be a whole number of at least 1, got"):
        vision_transformer(CIFAR10, image_size=4, patch_size=patch_size, channels=1, num_classes=2)
