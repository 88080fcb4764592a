"""Complete settings by name; importable without torch."""

from collections.abc import Callable
from dataclasses import replace

from probseq_apps.data.names import data_kind
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.recipes import correlated, eigen_pair, paper, small
from probseq_apps.settings.common import Pick, Recipes

_KNOWN: dict[str, Callable[[], ClassifySettings]] = {
    "digits-small": small.digits_small,
    "digits-all": small.digits_all,
    "mnist-small": small.mnist_small,
    "mnist-all": small.mnist_all,
    "cifar10-small": small.cifar10_small,
    "cola-small": small.cola_small,
    "sgpa-cifar10": paper.sgpa_cifar10,
    "sgpa-cifar10-aug": paper.sgpa_cifar10_aug,
    "sgpa-cifar100": paper.sgpa_cifar100,
    "sgpa-cifar100-aug": paper.sgpa_cifar100_aug,
    "sgpa-imdb": paper.sgpa_imdb,
    "sgpa-cola": paper.sgpa_cola,
    "cgpt-cifar10": correlated.cgpt_cifar10,
    "cgpt-cifar10-fixed-alpha": correlated.cgpt_cifar10_fixed_alpha,
    "cgpt-cola": correlated.cgpt_cola,
    "kepsvgp-cifar10": eigen_pair.kepsvgp_cifar10,
    "kepsvgp-cifar100": eigen_pair.kepsvgp_cifar100,
    "kepsvgp-imdb": eigen_pair.kepsvgp_imdb,
    "kepsvgp-cola": eigen_pair.kepsvgp_cola,
    "kepsvgp-cola-pairs": eigen_pair.kepsvgp_cola_pairs,
    "kepsvgp-cifar10-sgpa-size": eigen_pair.kepsvgp_cifar10_sgpa_size,
    "kepsvgp-cifar100-sgpa-size": eigen_pair.kepsvgp_cifar100_sgpa_size,
}

_SMALL_RECIPES = {
    "digits": "digits-small",
    "mnist": "mnist-small",
    "fashion-mnist": "mnist-small",
}


def _suiting(data: str) -> str:
    """Return the name of the recipe for two CPU cores that suits a data set."""
    return "cola-small" if data_kind(data) == "text" else _SMALL_RECIPES.get(data, "cifar10-small")


def _for_data(settings: ClassifySettings, pick: Pick) -> ClassifySettings:
    """Return settings for other data, which then aren't out of distribution."""
    if pick.data is None or pick.data == settings.data:
        return settings
    kept = tuple(name for name in settings.evaluation.ood if name != pick.data)
    return replace(settings, data=pick.data, evaluation=replace(settings.evaluation, ood=kept))


RECIPES = Recipes(_KNOWN, "digits-small", suits=_suiting, adapt=_for_data)
