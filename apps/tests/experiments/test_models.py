import pytest
import torch

from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.experiments.method_settings import KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.methods import BASE_METHODS, parse_method
from probseq_apps.experiments.models import build_model, kernel_name
from probseq_apps.experiments.settings import ClassifySettings, ModelSettings

SETTINGS = ClassifySettings(
    model=ModelSettings(dim=16, hidden_dim=16, patch_size=4), kepsvgp=KepsvgpSettings(rank=4)
)


@pytest.mark.parametrize("name", BASE_METHODS)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name):
    state = torch.get_rng_state()
    first, second, other = (
        build_model(BASE_METHODS[name], SETTINGS, load_images("digits"), seed=seed).state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_get_rbf_kernels_and_each_name_its_own():
    data = load_images("digits")
    assert kernel_name(parse_method("kernel").base, data, SETTINGS) == "rbf"
    exponential = parse_method("kernel-exponential").base
    assert kernel_name(exponential, data, SETTINGS) == "exponential"
    asked = ClassifySettings(model=ModelSettings(kernel="exponential"))
    assert kernel_name(parse_method("sgpa").base, data, asked) == "exponential"
    assert kernel_name(parse_method("kernel-rbf").base, data, asked) == "rbf"


def test_the_dataset_weighting_counts_the_global_kl_once_for_all_training_examples():
    data = load_images("digits")
    images = torch.zeros(2, 1, 8, 8)
    sequence, dataset = (
        build_model(
            BASE_METHODS["sgpa"],
            ClassifySettings(model=SETTINGS.model, sgpa=SgpaSettings(kl_weighting=weighting)),
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
        build_model(BASE_METHODS["mle"], SETTINGS, data, seed=0)
