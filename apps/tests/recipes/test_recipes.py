import pytest
import torch

from probseq_apps.data.containers import ImageData, ImageSplit, TextData, TextSplit
from probseq_apps.data.digits import digits
from probseq_apps.data.image_info import IMAGE_INFO
from probseq_apps.data.vocabulary import build_vocabulary
from probseq_apps.experiments.methods import base_methods
from probseq_apps.experiments.models import build_model
from probseq_apps.experiments.runs import make_predictor, preparation
from probseq_apps.experiments.tasks import ClassificationTask
from probseq_apps.recipes import RECIPES, for_data, load_recipe, small_recipe_name


def imitation(settings):
    """Two training examples of the shape of a recipe's data."""
    labels = torch.tensor([0, 1])
    if settings.data == "digits":
        return digits()
    if settings.is_text:
        vocab = build_vocabulary(["the cat sat on the mat"] * 5)
        tokens = torch.randint(1, len(vocab), (2, settings.model.max_length))
        split = TextSplit(tokens, labels)
        names = ("no", "yes")
        return TextData(settings.data, split, split, split, vocab, names, settings.model.max_length)
    info = IMAGE_INFO[settings.data]
    images = torch.randint(256, (2, info.channels, info.size, info.size), dtype=torch.uint8)
    split = ImageSplit(images, labels)
    return ImageData(settings.data, split, split, split, info.mean, info.std, info.class_names)


@pytest.mark.parametrize("name", RECIPES)
def test_every_method_of_every_recipe_takes_a_training_step(name):
    settings = load_recipe(name)
    data = imitation(settings)
    prepare = preparation(data)
    split = data.train
    inputs = split.images[:2] if isinstance(split, ImageSplit) else split.tokens[:2]
    for method in base_methods(settings.method):
        model = build_model(method, settings, data, seed=0)
        kl_anneal = settings.sgpa.kl_anneal if method.attention == "sgpa" else None
        predictor = make_predictor(method, settings, data)
        task = ClassificationTask(model, predictor, prepare=prepare, kl_anneal=kl_anneal)
        batch = (inputs, split.labels[:2])
        loss = task.loss(model, batch, progress=0.5, generator=torch.Generator()).loss
        loss.backward()
        assert torch.isfinite(loss)
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_the_papers_sizes_are_those_of_the_thesis():
    cifar10, cifar100 = load_recipe("sgpa-cifar10"), load_recipe("sgpa-cifar100")
    imdb, cola = load_recipe("sgpa-imdb"), load_recipe("sgpa-cola")
    sizes = [
        (s.model.depth, s.model.num_heads, s.model.dim, s.model.hidden_dim, s.sgpa.num_inducing)
        for s in (cifar10, cifar100, imdb, cola)
    ]
    assert sizes[:2] == [(5, 4, 128, 128, 32), (6, 4, 256, 256, 32)]
    assert sizes[2:] == [(1, 8, 128, 128, 50), (2, 4, 128, 256, 5)]
    lengths = [(s.training.epochs, s.training.batch_size) for s in (cifar10, cifar100, imdb, cola)]
    assert lengths == [(600, 100), (600, 100), (20, 32), (50, 32)]
    assert [s.training.select for s in (cifar10, imdb, cola)] == ["best", "best", "last"]
    assert cifar10.sgpa.warm_start_epochs == 100
    augmented = load_recipe("sgpa-cifar10-aug")
    assert augmented.training.augment == "three-augment"
    assert (augmented.model.depth, augmented.model.dim) == (6, 256)


def test_an_unknown_recipe_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'sgpa-cola'"):
        load_recipe("sgpa-colla")


@pytest.mark.parametrize("data", ["digits", "fashion-mnist", "svhn", "imdb", "folder:x", "csv:x"])
def test_every_data_set_has_a_small_recipe_that_accepts_it(data):
    settings = for_data(load_recipe(small_recipe_name(data)), data)
    assert settings.data == data
    assert data not in settings.evaluation.ood
