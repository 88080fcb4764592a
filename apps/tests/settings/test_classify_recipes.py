import pytest
import torch

from probseq_apps.data.image_files import IMAGE_INFO
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.data.texts import TextData
from probseq_apps.data.tokenizers import build_vocabulary
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.classify import classification_loss, penalty_of, preparation
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import RECIPES
from probseq_apps.settings.common import Pick
from probseq_apps.settings.methods import METHODS, trained_methods


def imitation(settings):
    """Two training examples of the shape of a recipe's data."""
    labels = torch.tensor([0, 1])
    if settings.data == "digits":
        return load_images("digits")
    if settings.is_text:
        vocab = build_vocabulary(["the cat sat on the mat"] * 5)
        tokens = torch.randint(1, len(vocab), (2, settings.model.max_length))
        split = Part(tokens, labels)
        names = ("no", "yes")
        return TextData(
            *(settings.data, split, split, split, vocab, settings.model.max_length),
            class_names=names,
        )
    info = IMAGE_INFO[settings.data]
    images = torch.randint(256, (2, info.channels, info.size, info.size), dtype=torch.uint8)
    split = Part(images, labels)
    return ImageData(
        settings.data, split, split, split, info.mean, info.std, class_names=info.class_names
    )


@pytest.mark.parametrize("name", RECIPES.known)
def test_every_method_of_every_recipe_takes_a_training_step(name):
    settings = RECIPES.load(name)
    data = imitation(settings)
    prepare = preparation(data)
    split = data.train
    inputs = split.inputs[:2]
    for method in map(METHODS.get, trained_methods(settings.method)):
        model = build(method, settings, data, seed=0)
        weight = penalty_of(method, settings)
        batch, step = (inputs, split.targets[:2]), Step(1, 0, 0.5, torch.Generator())
        loss = classification_loss(prepare, lambda x, generator: x, weight, model, batch, step).loss
        loss.backward()
        assert torch.isfinite(loss)
        gradients = [p.grad for p in model.parameters() if p.requires_grad]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_the_papers_sizes_are_those_of_the_thesis():
    cifar10, cifar100 = RECIPES.load("sgpa-cifar10"), RECIPES.load("sgpa-cifar100")
    imdb, cola = RECIPES.load("sgpa-imdb"), RECIPES.load("sgpa-cola")
    sizes = [
        (s.model.depth, s.model.num_heads, s.model.dim, s.model.hidden_dim, s.sgpa.num_inducing)
        for s in (cifar10, cifar100, imdb, cola)
    ]
    assert sizes[:2] == [(5, 4, 128, 128, 32), (6, 4, 256, 256, 32)]
    assert sizes[2:] == [(1, 8, 128, 128, 50), (2, 4, 128, 256, 5)]
    lengths = [(s.training.epochs, s.training.batch_size) for s in (cifar10, cifar100, imdb, cola)]
    assert lengths == [(600, 100), (600, 100), (20, 32), (50, 32)]
    assert [s.training.select for s in (cifar10, imdb, cola)] == ["best", "best", "last"]
    assert cifar10.warm_start.sgpa == 100
    augmented = RECIPES.load("sgpa-cifar10-aug")
    assert augmented.training.augment == "three-augment"
    assert (augmented.model.depth, augmented.model.dim) == (6, 256)


def test_an_unknown_recipe_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'sgpa-cola'"):
        RECIPES.load("sgpa-colla")


@pytest.mark.parametrize("data", ["digits", "fashion-mnist", "svhn", "imdb", "folder:x", "csv:x"])
def test_every_data_set_has_a_small_recipe_that_accepts_it(data):
    settings = RECIPES(Pick(data=data))[1]
    assert settings.data == data
    assert data not in settings.evaluation.ood


def test_the_papers_sizes_are_those_of_the_kep_svgp_paper():
    cifar, imdb, cola = (RECIPES.load(f"kepsvgp-{name}") for name in ("cifar10", "imdb", "cola"))
    sizes = [
        (s.model.depth, s.model.num_heads, s.model.dim, s.model.hidden_dim)
        for s in (cifar, imdb, cola)
    ]
    assert sizes == [(7, 12, 384, 384), (1, 8, 128, 128), (2, 4, 128, 256)]
    assert [(s.kepsvgp.rank, s.kepsvgp.eta) for s in (cifar, imdb, cola)] == [
        (10, 10.0),
        (10, 10.0),
        (5, 1.0),
    ]
    assert (cifar.training.epochs, cifar.training.batch_size) == (300, 128)
    assert all(s.training.schedule == "cosine" for s in (cifar, imdb, cola))
    assert RECIPES.load("kepsvgp-cola-pairs").kepsvgp.layers == "all"


def test_the_correlated_recipes_have_the_papers_noise_and_warm_start():
    cifar, cola = RECIPES.load("cgpt-cifar10"), RECIPES.load("cgpt-cola")
    assert (cifar.scgpt.noise, cola.scgpt.noise) == (0.1, 0.5)
    assert (cifar.warm_start.cgpt, cifar.warm_start.scgpt) == (200, 200)
    assert (cifar.cgpt.alpha_start, cifar.cgpt.alpha) == (0.0, 1.0)
