"""Settings of `probseq regress`, and its recipes."""

from dataclasses import replace

from probseq.settings import Count, Settings
from probseq_apps.data.names import CSV_PREFIX, DataError, own_path, unknown_name_message
from probseq_apps.settings.common import Flat, Pick, Recipes
from probseq_apps.settings.methods import (
    BackboneSettings,
    MethodSettings,
    TrainingSettings,
    parse_row,
)
from sgpa.spec import SGPAConfig

ZINC = "zinc"


class MoleculeSettings(Settings):
    """Data."""

    smiles_column: str = "smiles"
    """Column of the molecules, as SMILES; a csv: without `smiles` is a table of numbers."""
    target: str = "score"
    """Column of the number to predict."""
    validation_size: Count | None = None
    """Molecules for choosing the weights; None: a tenth. For a set that comes without a split."""
    test_size: Count | None = None
    """Molecules for evaluation; None: a tenth. For a set that comes without a split."""
    max_atoms: Count = 100
    """Most atoms of a molecule, hydrogens not counted; a larger one is refused."""


class RegressEvaluationSettings(Settings):
    """Evaluation."""

    num_samples: Count = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    ood: bool = True
    """Tell test molecules from the same ones with their bonds swapped, by predictive variance."""


class RegressSettings(MethodSettings):
    """What is compared, and on what."""

    data: str = ZINC
    """zinc (files in the data folder), or csv:PATH (CSV or TSV of molecules, or of numbers)."""
    method: tuple[str, ...] = ("mle", "kernel", "mcd", "sgpa")
    """As of `classify`, but for sngp and svdkl, +kflla and +ts; +ensemble is the mixture over the
    seeds."""
    reading: Flat[MoleculeSettings] = MoleculeSettings()
    model: Flat[BackboneSettings] = BackboneSettings()
    training: Flat[TrainingSettings] = TrainingSettings()
    evaluation: Flat[RegressEvaluationSettings] = RegressEvaluationSettings()

    def check(self) -> None:
        """Refuse unknown data, and methods for classes."""
        if self.data != ZINC and not self.data.startswith(CSV_PREFIX):
            raise DataError(
                unknown_name_message("data set", self.data, (ZINC, f"{CSV_PREFIX}PATH"))
            )
        own_path(self.data)  # refuses an empty path
        super().check()
        for name in self.method:
            row = parse_row(name)
            if row.base in ("sngp", "svdkl"):
                raise ValueError(
                    f"method {name!r} is for classification: its output's posterior is turned into "
                    "class probabilities"
                )
            if others := [addition for addition in row.additions if addition != "ensemble"]:
                raise ValueError(
                    f"method {name!r} must leave out {others[0]}: it changes class probabilities"
                )


def zinc_small() -> RegressSettings:
    """The 1,002 molecules of the small file, four methods, in minutes.

    With 800 molecules, about a nat each, the full KL divergence wins: attention stays at its prior,
    and the error is that of answering the median. So it is tempered.
    """
    return RegressSettings(
        model=BackboneSettings(depth=2, dim=32, hidden_dim=64),
        sgpa=SGPAConfig(num_inducing=8, kl_scale=0.01, initial_posterior="prior"),
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
        model=BackboneSettings(depth=8, dim=80, num_heads=8, hidden_dim=80),
        sgpa=SGPAConfig(num_inducing=10),
        training=TrainingSettings(
            epochs=500, learning_rate=4e-4, final_learning_rate=2e-6, validate_every=10
        ),
    )


def _for_data(settings: RegressSettings, pick: Pick) -> RegressSettings:
    """Return settings for another data set, with its columns and split as by default."""
    if pick.data is None or pick.data == settings.data:
        return settings
    return replace(settings, data=pick.data, reading=MoleculeSettings())


REGRESS_RECIPES = Recipes(
    {"zinc-small": zinc_small, "sgpa-zinc": sgpa_zinc},
    "zinc-small",
    suits=lambda data: "zinc-small",
    adapt=_for_data,
)
