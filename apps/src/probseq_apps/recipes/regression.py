"""Settings of `probseq regress`; importable without torch."""

from dataclasses import replace

from probseq_apps.experiments.method_settings import SgpaSettings
from probseq_apps.experiments.regress_settings import MoleculeSettings, RegressSettings
from probseq_apps.experiments.settings import ModelSettings, TrainingSettings
from probseq_apps.settings.common import Pick, Recipes

# With 800 molecules, about a nat each, the full KL divergence wins: attention stays at its prior,
# and the error is that of answering the median.
_LITTLE_KL = 0.01


def zinc_small() -> RegressSettings:
    """The default: the 1,002 molecules of the small file, four methods, in minutes.

    The KL divergence of SGPA is tempered: `kl_scale=1` is the ELBO.
    """
    return RegressSettings(
        model=ModelSettings(depth=2, dim=32, num_heads=4, hidden_dim=64),
        sgpa=SgpaSettings(
            num_inducing=8, kl_anneal=0.5, kl_scale=_LITTLE_KL, initial_posterior="prior"
        ),
        training=TrainingSettings(epochs=20, batch_size=32, learning_rate=5e-3, validate_every=2),
    )


def sgpa_zinc() -> RegressSettings:
    """Tables B.10 and B.32: ZINC, 8 layers with 8 heads of width 80 in all, 500 epochs.

    The 12,000 molecules as `zinc/train.csv`, `zinc/validation.csv` and `zinc/test.csv`. The thesis
    has three runs. It selects by a "validation accuracy" that regression has not: the mean absolute
    error here.
    """
    return RegressSettings(
        method=(
            *("mle", "kernel", "mcd-softmax", "mcd", "mfvi", "sgpa"),
            *("kernel+ensemble", "sgpa+ensemble"),
        ),
        seeds=(0, 1, 2),
        model=ModelSettings(depth=8, dim=80, num_heads=8, hidden_dim=80, dropout=0.1),
        sgpa=SgpaSettings(num_inducing=10),
        training=TrainingSettings(
            epochs=500,
            batch_size=64,
            learning_rate=4e-4,
            final_learning_rate=2e-6,
            validate_every=10,
        ),
    )


def _for_molecules(settings: RegressSettings, pick: Pick) -> RegressSettings:
    """Return settings for other data, with split and columns by default."""
    if pick.data is None or pick.data == settings.data:
        return settings
    return replace(settings, data=pick.data, reading=MoleculeSettings())


REGRESS_RECIPES = Recipes(
    {"zinc-small": zinc_small, "sgpa-zinc": sgpa_zinc},
    "zinc-small",
    suits=lambda data: "zinc-small",
    adapt=_for_molecules,
)
