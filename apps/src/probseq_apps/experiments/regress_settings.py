"""All settings of `probseq regress`; importable without torch, for the command line.

Their docstrings are the command line's help. Groups that mean the same as for `classify` are the
same classes; what they hold for images or texts alone is refused here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from probseq_apps.data.names import CSV_PREFIX, DataError, own_path, unknown_name_message
from probseq_apps.experiments.checks import at_least, unique
from probseq_apps.experiments.method_settings import CgptSettings, KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.methods import Method, parse_method
from probseq_apps.experiments.saved import config_values, saved_settings
from probseq_apps.experiments.settings import (
    ModelSettings,
    TrainingSettings,
    settings_from_dict,
)
from probseq_apps.settings.common import Flat

REGRESS = "regress"
ZINC = "zinc"


@dataclass(frozen=True, kw_only=True)
class MoleculeSettings:
    """Data."""

    smiles_column: str = "smiles"
    """Column of the molecules, as SMILES."""
    target_column: str = "score"
    """Column of the number to predict."""
    validation_size: int | None = None
    """Molecules for choosing the weights; None: a tenth. For a set that comes without a split."""
    test_size: int | None = None
    """Molecules for evaluation; None: a tenth. For a set that comes without a split."""
    max_atoms: int = 100
    """Most atoms of a molecule, hydrogens not counted; a larger one is refused."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("max_atoms", self.max_atoms, 1)
        for name in ("validation_size", "test_size"):
            if (size := getattr(self, name)) is not None:
                at_least(name, size, 1)


@dataclass(frozen=True, kw_only=True)
class RegressEvaluationSettings:
    """Evaluation."""

    num_samples: int = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    ood: bool = True
    """Tell test molecules from the same ones with their bonds swapped, by predictive variance."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_samples", self.num_samples, 1)


@dataclass(frozen=True, kw_only=True)
class RegressSettings:
    """What is compared, and on what."""

    data: str = ZINC
    """zinc (files in the data folder), or csv:PATH (molecules and numbers, CSV or TSV)."""
    method: tuple[str, ...] = ("mle", "kernel", "mcd", "sgpa")
    """mle (softmax attention), kernel, kernel-rbf, kernel-exponential, kernel-asym (asymmetric),
    mcd and mcd-softmax (Monte Carlo dropout), mfvi, sgpa, cgpt, scgpt, kepsvgp, kepsvgp-e and
    kepsvgp-r (one of its processes twice); each may be followed by +ensemble (mixture over the
    seeds)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once per seed."""
    reading: Flat[MoleculeSettings] = field(default_factory=MoleculeSettings)
    model: Flat[ModelSettings] = field(default_factory=ModelSettings)
    sgpa: Flat[SgpaSettings] = field(default_factory=SgpaSettings)
    cgpt: Flat[CgptSettings] = field(default_factory=CgptSettings)
    kepsvgp: Flat[KepsvgpSettings] = field(default_factory=KepsvgpSettings)
    training: Flat[TrainingSettings] = field(default_factory=TrainingSettings)
    evaluation: Flat[RegressEvaluationSettings] = field(default_factory=RegressEvaluationSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names and settings that don't go together.

        Raises:
            ValueError: names the setting.
        """
        _check_data(self.data)
        for name, values in (("method", self.method), ("seeds", self.seeds)):
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        for name in self.method:
            if parse_regression_method(name).ensemble and len(self.seeds) < 2:
                raise ValueError(f"method {name!r} needs at least two seeds, got {self.seeds}")
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        _refuse_changes(self.model, "patch_size", "max_length")
        _refuse_changes(self.sgpa, "warm_start_epochs")
        _refuse_changes(self.training, "augment")

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RegressSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def parse_regression_method(name: str) -> Method:
    """Read a method name and refuse what is for classes only.

    Raises:
        ValueError: the name is unknown, or the method has no meaning in regression.
    """
    method = parse_method(name)
    if method.base.baseline in ("sngp", "svdkl"):
        raise ValueError(
            f"method {name!r} is for classification: its output's posterior is turned into class "
            "probabilities"
        )
    if others := [suffix for suffix in method.suffixes if suffix != "ensemble"]:
        raise ValueError(
            f"method {name!r} must leave out {others[0]}: it changes class probabilities"
        )
    return method


def regress_config(recipe: str, settings: RegressSettings) -> dict[str, object]:
    """What a `regress` experiment's `config.json` holds."""
    return config_values(REGRESS, recipe, settings.to_dict())


def saved_regress(folder: Path) -> tuple[str, RegressSettings] | None:
    """Recipe and settings that the `regress` experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, REGRESS, RegressSettings.from_dict)


def _check_data(name: str) -> None:
    if name != ZINC and not name.startswith(CSV_PREFIX):
        raise DataError(unknown_name_message("data set", name, (ZINC, f"{CSV_PREFIX}PATH")))
    own_path(name)  # refuses an empty path


def _refuse_changes(group: ModelSettings | SgpaSettings | TrainingSettings, *names: str) -> None:
    defaults = {item.name: item.default for item in fields(group)}
    for name in names:
        if getattr(group, name) != defaults[name]:
            raise ValueError(f"{name} is a setting of classify, and regress doesn't use it")
