"""Transformers with correlated GP attention: the paper's sizes and settings."""

from dataclasses import replace

import pytest
import torch

from cgpt import (
    CIFAR10,
    CIFAR10_SPARSE,
    COLA,
    COLA_SPARSE,
    CGPTConfig,
    CorrelatedGPAttention,
    SCGPTConfig,
    SparseCorrelatedGPAttention,
)
from probseq.transformers import BlockContext, text_transformer, vision_transformer

# Depth, width, heads, hidden width, inducing inputs, σ and pooling: section 5.1.
SIZES = {
    "CIFAR10": (CIFAR10, (5, 128, 4, 128, None, 0.1, "sequence")),
    "CIFAR10_SPARSE": (CIFAR10_SPARSE, (5, 128, 4, 128, 16, 0.1, "sequence")),
    "COLA": (COLA, (2, 128, 4, 256, None, 0.1, "mean")),
    "COLA_SPARSE": (COLA_SPARSE, (2, 128, 4, 256, 5, 0.5, "mean")),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes_run_and_come_back_from_a_folder(name, tmp_path):
    preset, sizes = SIZES[name]
    given = preset.backbone.to_dict() | preset.attention.to_dict()
    names = ("depth", "dim", "num_heads", "hidden_dim", "num_inducing", "noise", "pooling")
    assert tuple(given.get(field) for field in names) == sizes
    torch.manual_seed(0)
    if name.startswith("CIFAR10"):
        model = vision_transformer(*preset, image_size=32, patch_size=4, channels=3, num_classes=10)
        inputs = torch.randn(2, 3, 32, 32)
    else:
        model = text_transformer(*preset, vocab_size=50, max_length=20, num_classes=10)
        inputs = torch.randint(1, 50, (2, 20))
    with torch.no_grad():
        out = model.eval()(inputs, num_samples=2)
    assert out.logits.shape == (2, 2, 10)
    assert out.logits.isfinite().all()
    assert (out.logits[0] - out.logits[1]).abs().max() > 1e-3  # the samples differ
    assert out.penalty.isfinite()
    kind = SparseCorrelatedGPAttention if "SPARSE" in name else CorrelatedGPAttention
    assert sum(isinstance(m, kind) for m in model.modules()) == preset.backbone.depth
    model.save_pretrained(tmp_path)
    stored = type(model).from_pretrained(tmp_path)
    generator, again = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = model(inputs, generator=generator).logits
    assert torch.equal(stored(inputs, generator=again).logits, expected)


@pytest.mark.parametrize(
    "config",
    [
        CGPTConfig(noise=0.2, conditional="exact", nugget=0.2),
        CGPTConfig(
            noise=0.2, regulariser="jensen", canonical_prior="noisy", sample_in_training=True
        ),
        SCGPTConfig(noise=0.2, num_inducing=3, num_key_inducing=2, conditional="fitc"),
        SCGPTConfig(noise=0.2, num_inducing=3, inducing="mixed", regulariser="marginals"),
    ],
)
def test_settings_reach_the_attention(config):
    module = config.build(BlockContext(replace(COLA.backbone, dropout=0.3), 0, 9))
    assert torch.allclose(torch.as_tensor(module.noise), torch.tensor(0.2))
    assert module.to_out[1].p == 0.3
    assert module.regulariser == config.regulariser
    assert module.canonical_prior == config.canonical_prior
    assert module.sample_in_training == config.sample_in_training
    if isinstance(config, CGPTConfig):
        assert (module.to_latent is None) == (config.conditional == "exact")
        assert module.nugget == config.nugget
    else:
        assert module.conditional == config.conditional
        tokens = torch.randn(1, 10, 128)
        if config.inducing == "mixed":
            with pytest.raises(ValueError, match="9"):
                module(tokens)
        else:
            assert module(tokens).values.isfinite().all()


@pytest.mark.parametrize("changes", [{"regulariser": "jensen"}, {"canonical_prior": "noisy"}])
def test_exact_prediction_has_no_inducing_values_at_construction(changes):
    with pytest.raises(ValueError, match="must be 'joint' or"):
        CGPTConfig(conditional="exact", **changes)


def test_the_regulariser_s_weight_moves_from_start_to_end():
    config = SCGPTConfig(alpha_start=0.2, alpha=0.6)
    assert [config.penalty_weight(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.4, 0.6])
    with pytest.raises(ValueError, match="progress must be from 0 to 1, got nan"):
        config.penalty_weight(float("nan"))
