"""Settings of `probseq classify` and `probseq regress`; their recipes are TOML files."""

from dataclasses import replace
from typing import Annotated, Literal

from probseq.settings import Bound, Count, Index, Settings
from probseq_apps.data.names import (
    CORRUPTION_NAMES,
    CSV_PREFIX,
    IMAGE_NAMES,
    SEQUENCE_CORRUPTION_NAMES,
    data_kind,
    user_path,
)
from probseq_apps.data.settings import DataSettings, MoleculeSettings
from probseq_apps.engine.config import EpochTraining
from probseq_apps.settings.common import (
    DISTINCT,
    DefaultSelectors,
    Flat,
    Names,
    Recipes,
    Share,
    check_name,
    require,
    with_data,
)
from probseq_apps.settings.methods import METHODS, BackboneSettings, MethodSettings

ROTATIONS, ZINC = "rotations", "zinc"
Severity = Annotated[int, Bound("from 1 to 5", lambda value: 1 <= value <= 5)]


class ImageAndTextSettings(BackboneSettings):
    """Transformer."""

    patch_size: Count = 4
    """Side of an image patch; must divide the image's side."""
    max_length: Count = 512
    """Texts: most tokens of a sequence, the rest is cut."""


class ImageTrainingSettings(EpochTraining):
    """Training."""

    augment: Literal["none", "crop-flip", "three-augment"] = "none"
    """Images: augmentation of the training batches."""


class EvaluationSettings(Settings):
    """Evaluation."""

    num_samples: Count = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    shift: bool = False
    """Images, sequences: evaluate under corruptions of the test part, at each severity."""
    corruptions: Annotated[tuple[str, ...], DISTINCT] = CORRUPTION_NAMES
    """Corruptions to use with --shift; of sequences frame_noise, dropped_frames, channel_gain and
    truncation, by default all."""
    severities: Annotated[tuple[Severity, ...], DISTINCT] = (1, 2, 3, 4, 5)
    """Severities to use with --shift."""
    ood: Annotated[tuple[str, ...], DISTINCT] = ()
    """Images: sets to tell apart from the test set, `rotations` is itself, turned."""
    error_rate: Share = 0.1
    """Wrong ones among the answers that are trusted, at most."""

    def check(self) -> None:
        """Refuse unknown names, and a shift of nothing."""
        for name in self.corruptions:
            check_name("corruption", name, (*CORRUPTION_NAMES, *SEQUENCE_CORRUPTION_NAMES))
        for name in self.ood:
            require(
                name == ROTATIONS or data_kind(name) == "image",
                f"ood must name image sets ({', '.join((*IMAGE_NAMES, ROTATIONS))}), got {name!r}",
            )
        require(
            not self.shift or (self.corruptions and self.severities),
            "corruptions and severities must not be empty with shift",
        )


class WarmStart(Settings):
    """Epochs of a method, of its training's, that are spent on kernel attention first."""

    sgpa: Index = 0
    """Of SGPA, on symmetric kernel attention."""
    cgpt: Index = 0
    """Of CGPT, on asymmetric RBF kernel attention."""
    scgpt: Index = 0
    """Of SCGPT, the same."""


class ClassifySettings(MethodSettings):
    """Comparison."""

    data: str = "digits"
    """speakers, digits, digit-sets (how many of four digits differ), mnist, fashion-mnist, cifar10,
    cifar100, svhn, cola, imdb; or a set of one's own: folder:PATH (images in one folder per class),
    csv:PATH (texts and labels, CSV or TSV) or sequences:PATH (an .npz of values, lengths and
    labels, or a CSV with columns id, time, label, and one a channel)."""
    reading: Flat[DataSettings] = DataSettings()
    model: Flat[ImageAndTextSettings] = ImageAndTextSettings()
    warm_start: WarmStart = WarmStart()
    training: Flat[ImageTrainingSettings] = ImageTrainingSettings()
    evaluation: Flat[EvaluationSettings] = EvaluationSettings()

    def check(self) -> None:
        """Refuse unknown data, and settings that don't go together."""
        kind = data_kind(self.data)
        shift, ood, training = self.evaluation.shift, self.evaluation.ood, self.training
        patches = self.model.patch_size != ImageAndTextSettings.patch_size
        of_images = {"shift": shift, "ood": ood, "augment": training.augment != "none"}
        for name, used in {**of_images, "patch_size": patches}.items():
            suits = kind == "image" or (kind == "sequence" and name == "shift")
            require(suits or not used, f"{name} is for images, and {self.data!r} holds {kind}s")
        path = user_path(self.data)
        table = path is not None and kind != "image" and path.suffix.lower() != ".npz"
        for name, suits in {"text_column": kind == "text", "label_column": True}.items():
            default = getattr(DataSettings, name) == getattr(self.reading, name)
            require(default or (table and suits), f"{self.data!r} has no {name}: leave it out")
        of_kind = SEQUENCE_CORRUPTION_NAMES if kind == "sequence" else CORRUPTION_NAMES
        for name in self.corruptions if shift else ():
            check_name("corruption", name, of_kind)
        for name in dict.fromkeys(self.row(name).base for name in self.method):
            warm = self.warm_epochs(name)
            require(
                not warm or training.epochs - warm > training.warmup_epochs,
                f"warm_start.{name} must leave more than warmup_epochs={training.warmup_epochs} of "
                f"epochs={training.epochs}, got {warm}",
            )

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The corruptions of the test part; the list of all of images stands for all there are."""
        chosen = self.evaluation.corruptions
        every = data_kind(self.data) == "sequence" and chosen == CORRUPTION_NAMES
        return SEQUENCE_CORRUPTION_NAMES if every else chosen

    @property
    def is_text(self) -> bool:
        """True where the data are texts."""
        return data_kind(self.data) == "text"

    def warm_epochs(self, method: str) -> int:
        """Return the epochs of a method that are spent on kernel attention first."""
        return getattr(self.warm_start, method, 0) if METHODS[method].warm_start else 0


class RegressEvaluationSettings(Settings):
    """Evaluation."""

    num_samples: Count = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    ood: bool = True
    """Tell test molecules from the same ones with their bonds swapped, by predictive variance."""


class RegressSettings(MethodSettings):
    """Comparison."""

    data: str = ZINC
    """zinc (files in the data folder), or csv:PATH (CSV or TSV of molecules)."""
    method: Names = ("mle", "kernel", "mcd", "sgpa")
    """As of `classify`, but for logreg, mlp, knn, gp, sngp, svdkl, +kflla and +ts; +ensemble: the
    mixture over seeds."""
    reading: Flat[MoleculeSettings] = MoleculeSettings()
    model: Flat[BackboneSettings] = BackboneSettings()
    training: Flat[EpochTraining] = EpochTraining()
    evaluation: Flat[RegressEvaluationSettings] = RegressEvaluationSettings()

    def check(self) -> None:
        """Refuse unknown data, and methods for classes."""
        if user_path(self.data) is None or not self.data.startswith(CSV_PREFIX):
            check_name("data set", self.data, (ZINC, f"{CSV_PREFIX}PATH"))
        for name in self.method:
            row = self.row(name)
            require(
                len(row.variants) == 1,
                f"method {name!r} must have one value of each setting: none is chosen here",
            )
            for component in (row.base, *row.additions):
                of_classes = component in ("sngp", "svdkl", "kflla", "ts")
                of_classes = of_classes or (component == row.base and row.method.estimator)
                require(not of_classes, f"method {name!r} is for classes: leave out {component}")


def _for_classes(settings: ClassifySettings, selectors: DefaultSelectors) -> ClassifySettings:
    """Return settings for other data, which then aren't out of distribution."""
    evaluation = settings.evaluation
    ood = tuple(name for name in evaluation.ood if name != selectors.data)
    return with_data(replace(settings, evaluation=replace(evaluation, ood=ood)), selectors)


def _for_numbers(settings: RegressSettings, selectors: DefaultSelectors) -> RegressSettings:
    """Return settings for another data set, with its columns and split as by default."""
    if selectors.data in (None, settings.data):
        return settings
    return replace(settings, data=selectors.data, reading=MoleculeSettings())


RECIPES = Recipes("classify", ClassifySettings, _for_classes)
REGRESS_RECIPES = Recipes("regress", RegressSettings, _for_numbers)
