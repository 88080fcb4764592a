"""Files of the standard image sets: torchvision's own, and tables of them; CelebA, CIFAR-C.

Nothing is unpickled but CIFAR's Python files, once torchvision has found their published MD5 sums.
"""

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from probseq.errors import MissingExtraError, require
from probseq_apps.data.names import DataError, data_folder, reading
from probseq_apps.data.parts import MAX_VALIDATION, Part, check_labels, labelled_images
from probseq_apps.data.pictures import as_displayed
from probseq_apps.data.tables import read_parquet
from probseq_apps.engine import log

_TEN_DIGITS = tuple("0123456789")
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


class ImageInfo(NamedTuple):
    """Facts of a standard set, before any file is opened.

    ``mean`` and ``std`` are the customary constants (for CIFAR-10 those of the thesis' authors).
    """

    channels: int
    size: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_count: int
    test_count: int
    published: str  # the class of torchvision.datasets


IMAGE_INFO: dict[str, ImageInfo] = {
    "mnist": ImageInfo(*(1, 28, _TEN_DIGITS, (0.1307,), (0.3081,), 60_000, 10_000), "MNIST"),
    "fashion-mnist": ImageInfo(
        *(1, 28, tuple(_FASHION.split(",")), (0.2860,), (0.3530,), 60_000, 10_000), "FashionMNIST"
    ),
    "cifar10": ImageInfo(
        *(3, 32, tuple(_CIFAR10.split()), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        *(50_000, 10_000, "CIFAR10"),
    ),
    "cifar100": ImageInfo(
        *(3, 32, tuple(_CIFAR100.split()), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        *(50_000, 10_000, "CIFAR100"),
    ),
    "svhn": ImageInfo(
        *(3, 32, _TEN_DIGITS, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        *(73_257, 26_032, "SVHN"),
    ),
}


def read_part(
    name: str, part: Literal["train", "test"], data_dir: Path | None, download: bool
) -> Part:
    """Read the training or test part of a standard set.

    The folder with the set's name may hold it as Parquet (Hugging Face) or NPZ (Keras); else the
    files are torchvision's.
    """
    # Files that are to be fetched need no directory that exists.
    directory = data_dir if download and data_dir else data_folder(name, data_dir)
    folder, info = directory / name, IMAGE_INFO[name]
    tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
    arrays = sorted(folder.glob("*.npz"))
    if tables:
        images = _read_tables(tables, "L" if info.channels == 1 else "RGB")
    elif arrays:
        images = _read_arrays(arrays[0], part)
    else:
        images = _read_published(name, part, directory, download)
    expected = (info.channels, info.size, info.size)
    if images.inputs.shape[1:] != expected:
        raise DataError(
            f"{directory}: images of {name} must have shape (channels, height, width)={expected}, "
            f"got {tuple(images.inputs.shape[1:])}"
        )
    check_labels(images.targets, len(info.class_names), directory)
    return images


def _read_arrays(path: Path, part: str) -> Part:
    """Read the arrays x_train, y_train, x_test and y_test of an NPZ file."""
    # Opened here: of a damaged archive numpy leaves its own file open.
    with (
        reading(path, f"an NPZ file with x_{part} and y_{part}"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return labelled_images(arrays[f"x_{part}"], arrays[f"y_{part}"], path)


def _read_published(name: str, part: str, directory: Path, download: bool) -> Part:
    """Read torchvision's files, which it checks, and fetches where asked."""
    from torchvision import datasets

    kind = IMAGE_INFO[name].published
    options = {"split": part} if name == "svhn" else {"train": part == "train"}

    def read() -> Any:
        return getattr(datasets, kind)(str(directory), download=download, **options)

    published = _fetched(name, directory, read, download)
    labels: Any = published.labels if name == "svhn" else published.targets
    return labelled_images(np.asarray(published.data), np.asarray(labels), directory)


def _fetched(name: str, directory: Path, read: Callable[[], Any], download: bool) -> Any:
    """Return what torchvision reads or fetches; its errors, and gdown's, are of many types."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        if not download:
            raise DataError(
                f"no files of {name!r} under {directory}: expected those of torchvision there, or "
                f"train*.parquet and test*.parquet or an NPZ file in {name}/ ({reason}); or let "
                "them be fetched with --download"
            ) from error
        raise DataError(
            f"{name!r} could not be fetched: {reason}; put its files under {directory} yourself"
        ) from error


def _read_tables(paths: Sequence[Path], mode: str) -> Part:
    """Read encoded images: a column image or img (a struct with bytes), and label or fine_label."""
    pixels: list[NDArray[np.uint8]] = []
    labels: list[NDArray[Any]] = []
    for path in paths:
        table = read_parquet(path)
        names = [
            next((name for name in choices if name in table.column_names), None)
            for choices in (("image", "img"), ("label", "fine_label"))
        ]
        if None in names:
            raise DataError(
                f"{path} needs a column image or img, and label or fine_label, it has "
                f"{table.column_names}"
            )
        for row, cell in enumerate(table[names[0]].to_pylist()):
            with (
                reading(f"{path}, row {row}", "an image"),
                Image.open(io.BytesIO(cell["bytes"])) as image,
            ):
                pixels.append(np.asarray(as_displayed(image, mode)[0]))
        labels.append(table[names[1]].to_numpy())
    with reading(paths[-1], "images of one size"):
        return labelled_images(np.stack(pixels), np.concatenate(labels), paths[-1])


_PUBLISHED = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
_SEVERITIES = 5


def available_cifar_c(name: str, data_dir: Path) -> tuple[str, ...]:
    """Return the corruptions of CIFAR-10 or CIFAR-100 whose files are under ``data_dir``."""
    files = (data_dir / _PUBLISHED[name]).glob("*.npy") if name in _PUBLISHED else ()
    return tuple(sorted(file.stem for file in files if file.stem != "labels"))


def read_cifar_c(name: str, data_dir: Path, corruption: str, severity: int) -> Part:
    """Read one corruption at a severity of 1 to 5: a fifth of its file, 10,000 images."""
    images, labels = (
        data_dir / _PUBLISHED[name] / f"{file}.npy" for file in (corruption, "labels")
    )
    part = labelled_images(_severity(images, severity), _severity(labels, severity), images)
    check_labels(part.targets, len(IMAGE_INFO[name].class_names), labels)
    return part


def _severity(path: Path, severity: int) -> NDArray[Any]:
    with reading(path, "five severities of equal length"):
        # Mapped, not read: the file holds all five.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        count, remainder = divmod(len(array), _SEVERITIES)
        if remainder or not count:
            raise ValueError(f"its shape is {array.shape}")
        return array[(severity - 1) * count : severity * count]


# CelebA's aligned faces (Liu et al. 2015) in its authors' three parts. The published images have
# 178x218 pixels. As is customary in generative modelling, the middle 140x140 of them is cut out
# (face and hair, little background) and resized bilinearly with antialiasing.
_PARTITION, _ALIGNED = "list_eval_partition.txt", "img_align_celeba"
_FACE, _CROP = (178, 218), 140
_BOX = (19, 39, 159, 179)  # left, top, right, bottom of the crop


def read_celeba(
    data_dir: Path | None, image_size: int, download: bool
) -> list[UInt8[Tensor, "n c h w"]]:
    """Return the three parts of torchvision's files; validation has no more than 5,000 images."""
    directory = data_dir if download and data_dir else data_folder("celeba", data_dir)
    root = directory / "celeba"
    folder = root / _ALIGNED
    if download and not folder.is_dir():
        from torchvision.datasets import CelebA

        try:
            require("gdown", extra="celeba", distribution="probseq-apps")
        except MissingExtraError as error:
            raise DataError(f"'celeba' cannot be fetched: {error}") from error
        # It lies with Google Drive, which often refuses.
        _fetched("celeba", directory, lambda: CelebA(str(directory), download=True), True)
    if not (folder.is_dir() and (root / _PARTITION).is_file()):
        raise DataError(
            f"no files of 'celeba' under {directory}: expected celeba/{_PARTITION} and "
            f"celeba/{_ALIGNED}; or let them be fetched with --download"
        )
    parts: dict[str, list[str]] = {"0": [], "1": [], "2": []}
    with reading(root / _PARTITION, "lines of a file name and 0, 1 or 2"):
        for line in (root / _PARTITION).read_text(encoding="utf-8").splitlines():
            name, part = line.split()
            parts[part].append(name)
    parts["1"] = parts["1"][:MAX_VALIDATION]
    return [_faces(folder, names, image_size) for names in parts.values()]


def _faces(folder: Path, names: list[str], image_size: int) -> UInt8[Tensor, "n 3 h w"]:
    pixels = np.empty((len(names), 3, image_size, image_size), np.uint8)

    def fill(row: int) -> None:
        pixels[row] = _face(folder / names[row], image_size)

    # Pillow decodes and resizes without Python's lock.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(fill, range(len(names)))
        for _ in log.bar(rows, desc="celeba", total=len(names), unit=" images"):
            pass
    return torch.from_numpy(pixels)


def _face(path: Path, image_size: int) -> NDArray[np.uint8]:
    with reading(path, "an image"), Image.open(path) as image:
        whole, _ = as_displayed(image, "RGB")
    if whole.size != _FACE:
        raise DataError(
            f"{path} must have 178x218 pixels, as the published aligned images, "
            f"got {whole.size[0]}x{whole.size[1]}"
        )
    # Pillow's `resize(box=...)` would let pixels from beyond the crop in at its border.
    face = whole.crop(_BOX).resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(face).transpose(2, 0, 1)
