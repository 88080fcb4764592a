"""Transformers with sparse GP attention: the papers' sizes and settings."""

from dataclasses import replace

import pytest
import torch

from probseq.transformers import BlockContext, text_transformer, vision_transformer
from sgpa import CIFAR10, CIFAR100, COLA, IMDB, SGPAConfig, SparseGPAttention

# Depth, width, heads, hidden width, inducing inputs, kernel and pooling: thesis B.4.
SIZES = {
    "CIFAR10": (CIFAR10, (5, 128, 4, 128, 32, "rbf", "sequence")),
    "CIFAR100": (CIFAR100, (6, 256, 4, 256, 32, "rbf", "sequence")),
    "IMDB": (IMDB, (1, 128, 8, 128, 50, "exponential", "mean")),
    "COLA": (COLA, (2, 128, 4, 256, 5, "exponential", "mean")),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes_run_and_come_back_from_a_folder(name, tmp_path):
    preset, sizes = SIZES[name]
    config, attention = preset
    given = config.to_dict() | attention.to_dict()
    names = ("depth", "dim", "num_heads", "hidden_dim", "num_inducing", "kernel", "pooling")
    assert tuple(given[field] for field in names) == sizes
    torch.manual_seed(0)
    if attention.kernel == "rbf":
        model = vision_transformer(*preset, image_size=32, patch_size=4, channels=3, num_classes=10)
        inputs = torch.randn(2, 3, 32, 32)
    else:
        model = text_transformer(*preset, vocab_size=50, max_length=20, num_classes=10)
        inputs = torch.randint(1, 50, (2, 20))
    out = model.eval()(inputs, num_samples=2)
    assert out.logits.shape == (2, 2, 10)
    assert out.logits.isfinite().all()
    assert 0 < out.penalty < float("inf")
    attentions = [m for m in model.modules() if isinstance(m, SparseGPAttention)]
    assert len(attentions) == config.depth
    width = config.dim // config.num_heads
    factor = (config.num_heads, width, attention.num_inducing, attention.num_inducing)
    assert all(a.raw_inducing_factor.shape == factor for a in attentions)
    model.save_pretrained(tmp_path)
    stored = type(model).from_pretrained(tmp_path)
    generator, again = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = model(inputs, generator=generator).logits
    assert torch.equal(stored(inputs, generator=again).logits, expected)


def test_the_divergence_at_the_authors_start_dwarfs_the_cross_entropy():
    # Why the divergence is annealed: about 5e4 nats for one CIFAR-10 layer.
    torch.manual_seed(0)
    model = vision_transformer(
        replace(CIFAR10.backbone, depth=1),
        CIFAR10.attention,
        image_size=32,
        patch_size=4,
        channels=3,
        num_classes=10,
    )
    penalty = float(model(torch.randn(4, 3, 32, 32)).penalty.detach())
    assert 3e4 < penalty < 3e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be a whole number of at least 1, got 0"),
        ({"kl_weighting": "dataset"}, "num_data, .* must be given with .*'dataset'"),
        ({"variant": "standard", "initial_posterior": "prior"}, "initial_posterior 'random'"),
        ({"variant": "standard", "sample": False}, "sample True"),
        ({"variant": "standard", "kl_weighting": "dataset"}, "kl_weighting must be 'sequence'"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CIFAR10.attention, **changes).build(BlockContext(CIFAR10.backbone, 0, 64))


def test_kernel_variance_and_number_of_data_come_from_the_place_where_settings_leave_them_open():
    context = BlockContext(
        COLA.backbone, 0, 9, kernel="exponential", initial_variance=0.25, num_data=7
    )
    module = SGPAConfig(kl_weighting="dataset").build(context)
    assert (module.kernel_name, module.global_weight) == ("exponential", 1 / 7)
    torch.testing.assert_close(module.kernel.outputscale, torch.full((4,), 0.25))
    own = SGPAConfig(kernel="rbf", initial_variance=0.5).build(context)
    assert (own.kernel_name, own.global_weight) == ("rbf", 1.0)
    torch.testing.assert_close(own.kernel.outputscale, torch.full((4,), 0.5))


def test_the_penalty_s_weight_rises_to_its_scale():
    config = SGPAConfig(kl_anneal=0.5, kl_scale=0.2)
    assert [config.penalty_weight(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.1, 0.2, 0.2]
    assert SGPAConfig(kl_anneal=0.0).penalty_weight(0.0) == 1.0
    assert SGPAConfig(kl_anneal=1.0).penalty_weight(0.5) == 0.5
    with pytest.raises(ValueError, match=r"progress must be from 0 to 1, got 1\.1"):
        config.penalty_weight(1.1)
