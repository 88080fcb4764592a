"""CIFAR-10 and CIFAR-100 in the form of their authors: binary, or Python batches.

The binary version holds plain bytes and is read as it is. The Python version consists of pickles,
and unpickling can run code. So a batch is opened only if its MD5 sum is the one published for the
real file (MD5 is weak against a forger who makes both files, not against one who must hit a given
sum), and then with an unpickler that knows numpy arrays and nothing else.
Archives are read in memory; nothing is unpacked.
"""

import hashlib
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from probseq_apps.data.arrays import image_tensor, label_tensor
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_files import Images, Labels

_ROW_PIXELS = 3 * 32 * 32
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_ALLOWED = {
    # numpy moved its core in version 2; the published files name the old place.
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class CifarLayout(NamedTuple):
    """Names of the published files of one of the two sets."""

    python_folder: str
    python_archive: str
    binary_folder: str
    binary_archive: str
    binary_train: tuple[str, ...]
    binary_test: tuple[str, ...]
    label_bytes: int
    label_key: str


LAYOUTS = {
    "cifar10": CifarLayout(
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        1,
        "labels",
    ),
    # In a row of CIFAR-100 the coarse label comes first; only the fine one is used.
    "cifar100": CifarLayout(
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("train.bin",),
        ("test.bin",),
        2,
        "fine_labels",
    ),
}


def read_cifar(name: str, part: str, root: Path) -> tuple[Images, Labels] | None:
    """Read a part of CIFAR from the published files under ``root``; None if there are none.

    Raises:
        DataError: a file is missing, damaged, or not the published one.
    """
    layout = LAYOUTS[name]
    binaries = layout.binary_train if part == "train" else layout.binary_test
    sums = _published_sums(name, part)
    sources = (
        (layout.binary_folder, layout.binary_archive, dict.fromkeys(binaries)),
        (layout.python_folder, layout.python_archive, sums),
    )
    for folder, archive, files in sources:
        if (root / folder).is_dir():
            contents = _read_folder(root / folder, tuple(files))
        elif (root / archive).is_file():
            contents = _read_archive(root / archive, folder, tuple(files))
        else:
            continue
        batches = [
            _binary_batch(data, layout, path)
            if (md5 := files[path.name]) is None
            else _python_batch(data, layout, md5, path)
            for path, data in contents
        ]
        pixels, labels = zip(*batches, strict=True)
        return torch.cat(pixels), torch.cat(labels)
    return None


def _published_sums(name: str, part: str) -> dict[str, str]:
    from torchvision.datasets import CIFAR10, CIFAR100

    published = CIFAR10 if name == "cifar10" else CIFAR100
    return {file: md5 for file, md5 in getattr(published, f"{part}_list")}


def _read_folder(folder: Path, files: tuple[str, ...]) -> list[tuple[Path, bytes]]:
    try:
        return [(folder / file, (folder / file).read_bytes()) for file in files]
    except OSError as error:
        raise DataError(f"{folder} is incomplete: {error}") from error


def _read_archive(archive: Path, folder: str, files: tuple[str, ...]) -> list[tuple[Path, bytes]]:
    contents: list[tuple[Path, bytes]] = []
    try:
        with tarfile.open(archive) as opened:
            for file in files:
                member = opened.extractfile(f"{folder}/{file}")
                if member is None:
                    raise DataError(f"{archive}: {folder}/{file} is not a file")
                contents.append((archive / file, member.read()))
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read: {error}") from error
    return contents


def _binary_batch(data: bytes, layout: CifarLayout, path: Path) -> tuple[Images, Labels]:
    row_bytes = layout.label_bytes + _ROW_PIXELS
    if not data or len(data) % row_bytes:
        raise DataError(f"{path} must hold rows of {row_bytes} bytes, got {len(data)} bytes")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)
    images = image_tensor(rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32), path)
    return images, label_tensor(rows[:, layout.label_bytes - 1], len(images), path)


def _python_batch(data: bytes, layout: CifarLayout, md5: str, path: Path) -> tuple[Images, Labels]:
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise DataError(
            f"{path} is damaged or not the published file (its MD5 sum is not {md5}): "
            "fetch it again; pickles of one's own are not opened"
        )
    try:
        batch: Any = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        pixels: NDArray[np.uint8] = batch["data"]
        labels = np.asarray(batch[layout.label_key])
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a CIFAR batch: {error}") from error
    images = image_tensor(pixels.reshape(-1, 3, 32, 32), path)
    return images, label_tensor(labels, len(images), path)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers; refuses every other class or function."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is refused") from None
