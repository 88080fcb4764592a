"""The published files of CIFAR-10-C and CIFAR-100-C."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probseq_apps.data.arrays import image_tensor, label_tensor
from probseq_apps.data.containers import ImageSplit, check_labels
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_info import IMAGE_INFO
from probseq_apps.data.names import unknown_name_message

_FOLDERS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
_SEVERITIES = 5


def available_cifar_c(name: str, data_dir: Path) -> tuple[str, ...]:
    """Names of the corruptions whose files are under ``data_dir``; empty if there are none.

    Args:
        name: ``"cifar10"`` or ``"cifar100"``; other sets have no such files.
        data_dir: directory that holds ``CIFAR-10-C`` or ``CIFAR-100-C``.
    """
    if name not in _FOLDERS:
        return ()
    files = (data_dir / _FOLDERS[name]).glob("*.npy")
    return tuple(sorted(file.stem for file in files if file.stem != "labels"))


def read_cifar_c(name: str, data_dir: Path, corruption: str, severity: int) -> ImageSplit:
    """Read one corruption at one severity: a fifth of its file, 10,000 images.

    Args:
        name: ``"cifar10"`` or ``"cifar100"``.
        data_dir: directory that holds ``CIFAR-10-C`` or ``CIFAR-100-C``.
        corruption: name of a file, without its ending.
        severity: 1 (mild) to 5 (severe).

    Raises:
        DataError: no such corruption or severity, or a damaged file.
    """
    known = available_cifar_c(name, data_dir)
    if corruption not in known:
        folder = data_dir / _FOLDERS.get(name, "CIFAR-10-C")
        raise DataError(f"{unknown_name_message('corruption', corruption, known)} (in {folder})")
    if severity not in range(1, _SEVERITIES + 1):
        raise DataError(f"severity must be 1, 2, 3, 4 or 5, got {severity}")
    folder = data_dir / _FOLDERS[name]
    images = _rows(folder / f"{corruption}.npy", severity)
    classes = _rows(folder / "labels.npy", severity)
    pixels = image_tensor(images, folder / f"{corruption}.npy")
    labels = label_tensor(classes, len(pixels), folder / "labels.npy")
    check_labels(labels, len(IMAGE_INFO[name].class_names), folder / "labels.npy")
    return ImageSplit(pixels, labels)


def _rows(path: Path, severity: int) -> NDArray[np.generic]:
    try:
        # Mapped, not read: the file holds all five severities.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if array.ndim == 0 or len(array) == 0 or len(array) % _SEVERITIES:
        raise DataError(
            f"{path} must hold five severities of equal length, got shape {array.shape}"
        )
    count = len(array) // _SEVERITIES
    return array[(severity - 1) * count : severity * count]
