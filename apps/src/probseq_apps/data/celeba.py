"""CelebA's aligned faces (Liu et al. 2015) in its authors' three parts, cropped and shrunk.

The published images have 178x218 pixels. As is customary in generative modelling, the middle
140x140 of them is cut out (face and hair, little background) and resized bilinearly with
antialiasing. The published parts have 162,770, 19,867 and 19,962 images.

Decoding 200,000 JPEGs takes minutes, so each whole part is kept as a NumPy array beside the files.
"""

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from probseq_apps.data.download import download_celeba
from probseq_apps.data.errors import DataError
from probseq_apps.data.names import filled_data_folder
from probseq_apps.data.splits import MAX_VALIDATION

_FOLDERS = ("celeba", "CelebA", "")
_PARTITION, _IMAGES = "list_eval_partition.txt", "img_align_celeba"
_SIZE, _CROP = (178, 218), 140
_BOX = (19, 39, 159, 179)  # left, top, right, bottom of the crop


class CelebaParts(NamedTuple):
    """Images (N, 3, size, size) of the three parts; validation has no more than 5,000."""

    train: UInt8[Tensor, "a 3 s s"]
    validation: UInt8[Tensor, "b 3 s s"]
    test: UInt8[Tensor, "k 3 s s"]


def load_celeba(
    data_dir: Path | None,
    *,
    image_size: int,
    num_train: int | None = None,
    download: bool = False,
) -> CelebaParts:
    """Load the aligned images.

    Args:
        data_dir: directory that holds ``list_eval_partition.txt`` and either the folder
            ``img_align_celeba`` or its archive, there or in ``celeba``.
        image_size: side in pixels after cropping.
        num_train: decode the first training images only.
        download: fetch the files if they are not there.

    Raises:
        DataError: files are missing, damaged, or of another kind.
    """
    directory = data_dir if download and data_dir else filled_data_folder("celeba", data_dir)
    root = _find_root(directory)
    if root is None and download:
        download_celeba(directory)
        root = _find_root(directory)
    if root is None:
        raise DataError(
            f"no files of 'celeba' under {directory}: expected celeba/{_PARTITION} and "
            f"celeba/{_IMAGES} or celeba/{_IMAGES}.zip; or let them be fetched with --download"
        )
    train, validation, test = _read_partition(root / _PARTITION)
    if num_train is not None and num_train > len(train):
        raise DataError(f"num_train must be at most {len(train)} for 'celeba', got {num_train}")
    with contextlib.ExitStack() as stack:
        read = _reader(root, stack)
        return CelebaParts(
            _decoded(root, "train", train[:num_train], image_size, read),
            _decoded(root, "validation", validation[:MAX_VALIDATION], image_size, read),
            _decoded(root, "test", test, image_size, read),
        )


def _find_root(directory: Path) -> Path | None:
    roots = (directory / folder for folder in _FOLDERS)
    return next((root for root in roots if (root / _PARTITION).is_file()), None)


def _read_partition(path: Path) -> tuple[list[str], list[str], list[str]]:
    parts: dict[str, list[str]] = {"0": [], "1": [], "2": []}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if len(words) != 2 or words[1] not in parts:
            raise DataError(f"{path}: line {number} must hold a file name and 0, 1 or 2: {line!r}")
        parts[words[1]].append(words[0])
    return parts["0"], parts["1"], parts["2"]


def _reader(root: Path, stack: contextlib.ExitStack) -> Callable[[str], bytes]:
    """What reads an encoded image by its name, from the folder or out of the archive."""
    folder, archive = root / _IMAGES, root / f"{_IMAGES}.zip"
    if folder.is_dir():
        return lambda name: (folder / name).read_bytes()
    if not archive.is_file():
        raise DataError(f"{root} has {_PARTITION}, but neither {_IMAGES} nor {archive.name}")
    try:
        opened = stack.enter_context(ZipFile(archive))
    except (OSError, BadZipFile) as error:
        raise DataError(f"{archive} cannot be read: {error}") from error
    return lambda name: opened.read(f"{_IMAGES}/{name}")


def _decoded(
    root: Path, part: str, names: list[str], image_size: int, read: Callable[[str], bytes]
) -> UInt8[Tensor, "n 3 s s"]:
    shape = (len(names), 3, image_size, image_size)
    # Count and size are in the name: a part of the part has a file of its own.
    kept = root / f"{part}-{len(names)}-crop{_CROP}-{image_size}.npy"
    # A damaged array counts as none.
    with contextlib.suppress(OSError, ValueError, EOFError):
        pixels = np.load(kept, allow_pickle=False)
        if pixels.shape == shape and pixels.dtype == np.uint8:
            return torch.from_numpy(pixels)
    pixels = np.empty(shape, np.uint8)

    def fill(row: int) -> None:
        pixels[row] = _face(names[row], image_size, read)

    # Pillow decodes and resizes without Python's lock.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(fill, range(len(names)))
        for _ in tqdm(rows, f"celeba {part}", len(names), unit="image", disable=None):
            pass
    # A directory that may not be written to, or is full, costs time and nothing else.
    with contextlib.suppress(OSError):
        _store(kept, pixels)
    return torch.from_numpy(pixels)


def _face(name: str, image_size: int, read: Callable[[str], bytes]) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(read(name))) as image:
            whole = image.convert("RGB")
    except (OSError, KeyError, ValueError, SyntaxError, BadZipFile) as error:
        raise DataError(f"{name} of 'celeba' cannot be read as an image: {error}") from error
    if whole.size != _SIZE:
        raise DataError(
            f"{name} of 'celeba' must have 178x218 pixels, as the published aligned images, "
            f"got {whole.size[0]}x{whole.size[1]}"
        )
    # Pillow's `resize(box=...)` would let pixels from beyond the crop in at its border.
    face = whole.crop(_BOX).resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(face).transpose(2, 0, 1)


def _store(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write an array that appears whole or not at all."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=".npy")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, pixels)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)
