"""What a trained model is evaluated on, by name."""

from collections.abc import Callable
from pathlib import Path

from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.corruptions import available_cifar_c, corrupt, read_cifar_c
from probseq_apps.data.images import ImageData, load_ood_images
from probseq_apps.data.names import CORRUPTION_NAMES, DataError
from probseq_apps.data.parts import Part
from probseq_apps.data.texts import EmbeddedTextData, TextData
from probseq_apps.data.transforms import rotate
from probseq_apps.experiments.settings import ROTATIONS, EvaluationSettings

# Corruptions made by this program, and the published files of CIFAR-10-C and CIFAR-100-C.
MADE, PUBLISHED = "shift", "cifar-c"
SHIFT_PREFIXES = (f"{MADE}/", f"{PUBLISHED}/")

# The same corrupted pixels for every method, seed and run.
_CORRUPTION_SEED = 0
_ROTATION_DEGREES = 90.0

# Inputs and labels, made when they are needed: all corruptions of CIFAR-10 are two gigabytes.
TestSet = Callable[[], tuple[Tensor, Int64[Tensor, " n"]]]


Data = ImageData | TextData | EmbeddedTextData


def make_test_sets(
    data: Data, settings: EvaluationSettings, data_dir: Path | None, download: bool
) -> dict[str, TestSet]:
    """List everything to predict.

    Where the data folder has the published files of CIFAR-10-C or CIFAR-100-C, they take the place
    of the corruptions that the program makes; those of the same names, if only some are asked for.
    Out-of-distribution files are read at once, so that a missing one is noticed before anything is
    trained.

    Args:
        data: the data set; its validation part is listed unless it is empty.
        settings: shift and out-of-distribution sets to use.
        data_dir: folder of the data sets.
        download: fetch missing out-of-distribution sets.

    Raises:
        DataError: an out-of-distribution set is missing or damaged, or the images cannot be
            corrupted.
    """
    sets: dict[str, TestSet] = {}
    if len(data.validation) > 0:
        sets["validation"] = _whole(data.validation)
    sets["test"] = _whole(data.test)
    if not isinstance(data, ImageData):
        return sets | {name: _whole(split) for name, split in data.extra_tests.items()}
    if settings.shift:
        sets |= _shifted(data, settings, data_dir)
    for name in settings.ood:
        if name == ROTATIONS:
            sets[f"ood/{name}"] = _rotated(data.test)
        else:
            outside = load_ood_images(name, data, data_dir=data_dir, download=download)
            sets[f"ood/{name}"] = _whole(outside)
    return sets


def tensors(split: Part) -> tuple[Tensor, Int64[Tensor, " n"]]:
    """Raw inputs and labels of a part of a data set."""
    return split.inputs, split.targets


def _whole(split: Part) -> TestSet:
    return lambda: tensors(split)


def _rotated(split: Part) -> TestSet:
    return lambda: (rotate(split.inputs, _ROTATION_DEGREES), split.targets)


def _shifted(
    data: ImageData, settings: EvaluationSettings, data_dir: Path | None
) -> dict[str, TestSet]:
    if data_dir is not None and (published := available_cifar_c(data.name, data_dir)):
        # The full list stands for all there are: the published families are a few more.
        every = set(settings.corruptions) == set(CORRUPTION_NAMES)
        chosen = [name for name in published if every or name in settings.corruptions]
        if not chosen:
            raise DataError(
                f"none of the corruptions {', '.join(settings.corruptions)} is among the published "
                f"files of {data.name!r} under {data_dir}, which are {', '.join(published)}"
            )
        return {
            f"{PUBLISHED}/{name}/{severity}": _published(data.name, data_dir, name, severity)
            for name in chosen
            for severity in settings.severities
        }
    for name in settings.corruptions:
        # Images that cannot be corrupted are refused before anything is trained.
        corrupt(data.test.inputs[:1], name, settings.severities[0], seed=_CORRUPTION_SEED)
    return {
        f"{MADE}/{name}/{severity}": _corrupted(data.test, name, severity)
        for name in settings.corruptions
        for severity in settings.severities
    }


def _published(data: str, data_dir: Path, name: str, severity: int) -> TestSet:
    def read() -> tuple[Tensor, Tensor]:
        split = read_cifar_c(data, data_dir, name, severity)
        return split.inputs, split.targets

    return read


def _corrupted(split: Part, name: str, severity: int) -> TestSet:
    return lambda: (
        corrupt(split.inputs, name, severity, seed=_CORRUPTION_SEED),
        split.targets,
    )
