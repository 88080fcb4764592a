"""Settings of the correlated GP transformer's paper, named for the tables that they reproduce.

Deviations: CoLA has a learned embedding in place of ELMo unless `--embeddings` names a file, and
all runs share one split. The paper measures detection against Textures, LSUN and TinyImageNet; name
folders of them with `--ood`.
"""

from dataclasses import replace

from probseq_apps.experiments.method_settings import CgptSettings
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.recipes.paper import sgpa_cifar10, sgpa_cola

_SEEDS = (0, 1, 2)


def cgpt_cifar10() -> ClassifySettings:
    """Tables II and III: CIFAR-10, ViT with 5 layers of width 128."""
    base = sgpa_cifar10()
    return replace(
        base,
        method=("kernel", "kernel-asym", "sgpa", "cgpt", "scgpt"),
        seeds=_SEEDS,
        cgpt=CgptSettings(scgpt_noise=0.1, scgpt_inducing=16, cgpt_warm_start_epochs=200),
    )


def cgpt_cifar10_fixed_alpha() -> ClassifySettings:
    """Table IV: the weight of the regulariser fixed at 0.7."""
    base = cgpt_cifar10()
    return replace(
        base,
        method=("sgpa", "cgpt"),
        cgpt=replace(base.cgpt, alpha_start=0.7, alpha=0.7),
    )


def cgpt_cola() -> ClassifySettings:
    """Table I: CoLA, 2 layers with 4 heads, width 128, hidden width 256."""
    return replace(
        sgpa_cola(),
        method=("kernel", "kernel-asym", "sgpa", "cgpt", "scgpt"),
        seeds=_SEEDS,
        cgpt=CgptSettings(scgpt_noise=0.5, scgpt_inducing=5),
    )
