"""Settings of the thesis (app. B.4), named for the tables that they reproduce.

Deviations: all runs of a recipe share one split of the data, which makes ensembles of them
possible, where the thesis draws one for each run; CoLA has a learned embedding in place of ELMo
unless `--embeddings` names a file.
The thesis pools by the mean; its authors' code for images, and the recipes, by learned weights.
"""

from probseq_apps.experiments.method_settings import SgpaSettings
from probseq_apps.experiments.settings import (
    ClassifySettings,
    EvaluationSettings,
    ModelSettings,
    TrainingSettings,
)

_SEEDS = (0, 1, 2, 3, 4)
_METHODS = (
    "mle",
    "kernel",
    "kernel+ts",
    "mfvi",
    "mcd",
    "kernel+kflla",
    "sngp",
    "sgpa",
    "kernel+ensemble",
    "sgpa+ensemble",
)


def _cifar(
    data: str, depth: int, dim: int, *, other: str, augmented: bool = False
) -> ClassifySettings:
    return ClassifySettings(
        data=data,
        method=_METHODS,
        seeds=_SEEDS,
        model=ModelSettings(
            depth=depth,
            dim=dim,
            num_heads=4,
            hidden_dim=dim,
            dropout=0.1,
            pooling="sequence",
            shared_norm=True,
            patch_size=4,
        ),
        sgpa=SgpaSettings(num_inducing=32, kl_anneal=0.5, warm_start_epochs=100),
        training=TrainingSettings(
            epochs=600,
            batch_size=100,
            learning_rate=5e-4,
            final_learning_rate=1e-5,
            warmup_epochs=5,
            augment="three-augment" if augmented else "none",
            validate_every=10,
            checkpoint_every=10,
        ),
        evaluation=EvaluationSettings(shift=True, ood=("svhn", other)),
    )


def sgpa_cifar10() -> ClassifySettings:
    """Table B.6: CIFAR-10 without augmentation, ViT with 5 layers of width 128."""
    return _cifar("cifar10", 5, 128, other="cifar100")


def sgpa_cifar10_aug() -> ClassifySettings:
    """Table B.7: CIFAR-10 with 3-Augment, ViT with 6 layers of width 256."""
    return _cifar("cifar10", 6, 256, other="cifar100", augmented=True)


def sgpa_cifar100() -> ClassifySettings:
    """Table B.8: CIFAR-100 without augmentation, ViT with 6 layers of width 256."""
    return _cifar("cifar100", 6, 256, other="cifar10")


def sgpa_cifar100_aug() -> ClassifySettings:
    """Table B.9: CIFAR-100 with 3-Augment, ViT with 6 layers of width 256."""
    return _cifar("cifar100", 6, 256, other="cifar10", augmented=True)


def sgpa_imdb() -> ClassifySettings:
    """Table B.4: IMDB, one layer with 8 heads of width 128 in all."""
    return ClassifySettings(
        data="imdb",
        method=_METHODS,
        seeds=_SEEDS,
        model=ModelSettings(
            depth=1, dim=128, num_heads=8, hidden_dim=128, dropout=0.1, max_length=512
        ),
        sgpa=SgpaSettings(num_inducing=50, kl_anneal=0.0),
        training=TrainingSettings(
            epochs=20,
            batch_size=32,
            learning_rate=1e-3,
            final_learning_rate=1e-4,
            select="best",
            checkpoint_every=1,
        ),
    )


def sgpa_cola() -> ClassifySettings:
    """Table B.5: CoLA, 2 layers with 4 heads, width 128, hidden width 256."""
    return ClassifySettings(
        data="cola",
        # Every row that is not for testing trains: nothing to fit a temperature on.
        method=tuple(name for name in _METHODS if name != "kernel+ts"),
        seeds=_SEEDS,
        model=ModelSettings(
            depth=2, dim=128, num_heads=4, hidden_dim=256, dropout=0.1, max_length=64
        ),
        sgpa=SgpaSettings(num_inducing=5, kl_anneal=0.0),
        training=TrainingSettings(
            epochs=50,
            batch_size=32,
            learning_rate=5e-4,
            final_learning_rate=1e-5,
            select="last",
        ),
    )
