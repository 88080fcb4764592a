"""Complete settings by name; importable without torch."""

from collections.abc import Callable
from dataclasses import replace

from probseq_apps.data.names import data_kind, unknown_name_message
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.recipes import paper, small

RECIPES: dict[str, Callable[[], ClassifySettings]] = {
    "digits-small": small.digits_small,
    "mnist-small": small.mnist_small,
    "cifar10-small": small.cifar10_small,
    "cola-small": small.cola_small,
    "sgpa-cifar10": paper.sgpa_cifar10,
    "sgpa-cifar10-aug": paper.sgpa_cifar10_aug,
    "sgpa-cifar100": paper.sgpa_cifar100,
    "sgpa-cifar100-aug": paper.sgpa_cifar100_aug,
    "sgpa-imdb": paper.sgpa_imdb,
    "sgpa-cola": paper.sgpa_cola,
}

_SMALL_RECIPES = {
    "digits": "digits-small",
    "mnist": "mnist-small",
    "fashion-mnist": "mnist-small",
}


def load_recipe(name: str) -> ClassifySettings:
    """Settings of a recipe.

    Raises:
        ValueError: the name is unknown; the message names the nearest known one.
    """
    if name not in RECIPES:
        raise ValueError(unknown_name_message("recipe", name, RECIPES))
    return RECIPES[name]()


def small_recipe_name(data: str) -> str:
    """Name of the recipe for two CPU cores that suits a data set.

    Raises:
        ValueError: the data set is unknown.
    """
    if data_kind(data) == "text":
        return "cola-small"
    return _SMALL_RECIPES.get(data, "cifar10-small")


def for_data(recipe: ClassifySettings, data: str) -> ClassifySettings:
    """A recipe's settings with another data set, without out-of-distribution sets of its own."""
    if data == recipe.data:
        return recipe
    kept = tuple(name for name in recipe.evaluation.ood if name != data)
    return replace(recipe, data=data, evaluation=replace(recipe.evaluation, ood=kept))
