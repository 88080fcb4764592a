from dataclasses import replace

import pytest
import torch

from kepsvgp import KEPSVGPConfig
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import ClassifySettings, ImageAndTextSettings
from probseq_apps.settings.methods import METHODS
from sgpa import SGPAConfig

SETTINGS = ClassifySettings(
    model=ImageAndTextSettings(dim=16, hidden_dim=16, patch_size=4), kepsvgp=KEPSVGPConfig(rank=4)
)


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name):
    state = torch.get_rng_state()
    first, second, other = (
        build(METHODS[name], SETTINGS, load_images("digits"), seed=seed).state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


def kernels(name, settings, data):
    found = build(METHODS[name], settings, data, seed=0).encoder.attention
    return {getattr(module, "kernel_name", None) for module in found}


def test_images_get_rbf_kernels_and_each_name_its_own():
    data = load_images("digits")
    assert kernels("kernel", SETTINGS, data) == {"rbf"}
    assert kernels("kernel-exponential", SETTINGS, data) == {"exponential"}
    asked = replace(SETTINGS, model=replace(SETTINGS.model, kernel="exponential"))
    assert kernels("sgpa", asked, data) == {"exponential"}
    assert kernels("kernel-rbf", asked, data) == {"rbf"}


def test_the_dataset_weighting_counts_the_global_kl_once_for_all_training_examples():
    data = load_images("digits")
    images = torch.zeros(2, 1, 8, 8)
    sequence, dataset = (
        build(
            METHODS["sgpa"],
            ClassifySettings(model=SETTINGS.model, sgpa=SGPAConfig(kl_weighting=weighting)),
            data,
            seed=0,
        ).eval()
        for weighting in ("sequence", "dataset")
    )
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    with torch.no_grad():
        whole, once = (
            model(images, generator=generator).penalty.item()
            for model, generator in zip((sequence, dataset), generators, strict=True)
        )
    assert 0 < once < whole


def test_a_patch_that_does_not_divide_the_image_is_refused():
    split = Part(torch.zeros(4, 3, 9, 9, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    data = ImageData("nine", split, split, split, (0.0,) * 3, (1.0,) * 3, class_names=("a", "b"))
    with pytest.raises(ValueError, match="patch_size"):
        build(METHODS["mle"], SETTINGS, data, seed=0)
