from dataclasses import replace

import pytest
import torch

from kepsvgp import KEPSVGPConfig
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import ClassifySettings, ImageAndTextSettings
from probseq_apps.settings.methods import METHODS, resolve
from sgpa import SGPAConfig

SETTINGS = ClassifySettings(
    model=ImageAndTextSettings(dim=16, hidden_dim=16, patch_size=4), kepsvgp=KEPSVGPConfig(rank=4)
)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].estimator])
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name):
    state, data = torch.get_rng_state(), load_images("digits")
    first, second, other = (
        build(resolve(name, SETTINGS), data, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_get_rbf_kernels_and_each_name_its_own():
    exponential = replace(SETTINGS, model=replace(SETTINGS.model, kernel="exponential"))
    for name, settings, kernel in (
        ("kernel", SETTINGS, "rbf"),
        ("kernel-exponential", SETTINGS, "exponential"),
        ("sgpa", exponential, "exponential"),
        ("kernel-rbf", exponential, "rbf"),
    ):
        model = build(resolve(name, settings), load_images("digits"), seed=0)
        assert {module.kernel_name for module in model.encoder.attention} == {kernel}


def test_the_dataset_weighting_counts_the_global_kl_once_for_all_training_examples():
    penalties = []
    for weighting in ("dataset", "sequence"):
        settings = replace(SETTINGS, sgpa=SGPAConfig(kl_weighting=weighting))
        model = build(resolve("sgpa", settings), load_images("digits"), seed=0).eval()
        generator = torch.Generator().manual_seed(0)
        penalties.append(model(torch.zeros(2, 1, 8, 8), generator=generator).penalty.item())
    assert 0 < penalties[0] < penalties[1]


def test_a_patch_that_does_not_divide_the_image_is_refused():
    split = Part(torch.zeros(4, 3, 9, 9, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    data = ImageData("nine", split, split, split, (0.0,) * 3, (1.0,) * 3, class_names=("a", "b"))
    with pytest.raises(ValueError, match="patch_size"):
        build(resolve("mle", SETTINGS), data, seed=0)
