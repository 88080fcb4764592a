"""Files of the standard image sets and of CelebA: those of their authors, NPZ and Parquet.

Nothing is unpickled but CIFAR's Python files, once torchvision has found their published MD5 sums.
"""

import gzip
import io
import json
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor

from probseq.files import Format, read_tensors, write_tensors
from probseq_apps.data.fetch import fetch_images
from probseq_apps.data.names import DataError, data_folder, reading
from probseq_apps.data.parts import MAX_VALIDATION, Part, check_labels, labelled_images
from probseq_apps.data.pictures import as_seen
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
    """What is known of a standard set before any file is opened.

    ``mean`` and ``std`` are the customary constants (for CIFAR-10 those of the thesis' authors).
    ``folders`` are the folders under the data directory that may hold the files, ``published`` the
    files of the set's authors.
    """

    channels: int
    size: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_count: int
    test_count: int
    folders: tuple[str, ...]
    published: str


IMAGE_INFO: dict[str, ImageInfo] = {
    "mnist": ImageInfo(
        *(1, 28, _TEN_DIGITS, (0.1307,), (0.3081,), 60_000, 10_000),
        ("mnist", "MNIST", "MNIST/raw"),
        "MNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "fashion-mnist": ImageInfo(
        *(1, 28, tuple(_FASHION.split(",")), (0.2860,), (0.3530,), 60_000, 10_000),
        (
            *("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
            "fashion_mnist_test_part",
        ),
        "FashionMNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "cifar10": ImageInfo(
        *(3, 32, tuple(_CIFAR10.split()), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        *(50_000, 10_000, ("cifar10", "CIFAR10")),
        "cifar-10-batches-bin, cifar-10-batches-py or their .tar.gz archives",
    ),
    "cifar100": ImageInfo(
        *(3, 32, tuple(_CIFAR100.split()), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        *(50_000, 10_000, ("cifar100", "CIFAR100")),
        "cifar-100-binary, cifar-100-python or their .tar.gz archives",
    ),
    "svhn": ImageInfo(
        *(3, 32, _TEN_DIGITS, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        *(73_257, 26_032, ("svhn", "SVHN")),
        "train_32x32.mat and test_32x32.mat",
    ),
}


def read_part(
    name: str,
    part: Literal["train", "test"],
    data_dir: Path | None,
    download: bool,
    limit: int | None = None,
) -> Part:
    """Read the training or test part of a standard set, no more than so many of its images."""
    # Files that are to be fetched need no directory that exists.
    directory = data_dir if download and data_dir else data_folder(name, data_dir)
    images = _search(name, part, directory, limit)
    if images is None and download:
        fetch_images(name, part, directory)
        images = _search(name, part, directory, limit)
    if images:
        return images.rows(slice(limit))
    info = IMAGE_INFO[name]
    raise DataError(
        f"no {part} files of {name!r} under {directory}: expected train*.parquet and test*.parquet "
        f"or an NPZ file in {info.folders[0]}, or {info.published}; or let them be fetched with "
        "--download"
    )


def _search(name: str, part: str, data_dir: Path, limit: int | None) -> Part | None:
    info = IMAGE_INFO[name]
    # The directory itself is searched only for names that belong to one set alone: an IDX or
    # Parquet file there could be MNIST as well as Fashion-MNIST.
    for folder in (*(data_dir / folder for folder in info.folders), data_dir):
        images = None
        if folder.is_dir():
            images = None if folder == data_dir else _read_shared(info, part, folder, limit)
            images = images or _read_published(name, part, folder)
        if images:
            expected = (info.channels, info.size, info.size)
            if images.inputs.shape[1:] != expected:
                raise DataError(
                    f"{folder}: images of {name} must have shape (channels, height, width)="
                    f"{expected}, got {tuple(images.inputs.shape[1:])}"
                )
            check_labels(images.targets, len(info.class_names), folder)
            return images
    return None


def _read_shared(info: ImageInfo, part: str, folder: Path, limit: int | None) -> Part | None:
    """Read what has the same names for several sets: Parquet, NPZ and IDX files."""
    tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
    if tables:
        return _read_tables(tables, "L" if info.channels == 1 else "RGB", limit)
    for path in sorted(folder.glob("*.npz")):
        # Opened here: of a damaged archive numpy leaves its own file open.
        with (
            reading(path, "an NPZ file"),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            if f"x_{part}" in arrays and f"y_{part}" in arrays:
                return labelled_images(arrays[f"x_{part}"], arrays[f"y_{part}"], path)
    prefix = "train" if part == "train" else "t10k"
    images, labels = (
        next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
        for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    )
    if images and labels:
        return labelled_images(_read_idx(images), _read_idx(labels), images)
    if images or labels:
        raise DataError(f"{folder} has only one of {prefix}-images and {prefix}-labels")
    return None


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file, gzipped or not: its type, number of dimensions, shape, and bytes."""
    with reading(path, "an IDX file of bytes"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        if content[:3] != b"\0\0\x08":
            raise ValueError("it starts with another type")
        shape = np.frombuffer(content, ">u4", content[3], 4)
        return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)


def _read_published(name: str, part: str, folder: Path) -> Part | None:
    """Read the files of the authors of CIFAR and SVHN."""
    from torchvision.datasets import CIFAR10, CIFAR100, SVHN

    if name == "svhn" and (path := folder / f"{part}_32x32.mat").is_file():
        with reading(path, "SVHN's published file"):
            published = SVHN(str(folder), split=part)
        return labelled_images(published.data, published.labels, path)
    if not name.startswith("cifar"):
        return None
    # In a row of the binary files its labels come first, the fine one last.
    kind, skipped = (CIFAR10, 1) if name == "cifar10" else (CIFAR100, 2)
    packed = kind.filename.replace("python", "binary")
    binary = kind.base_folder.replace("batches-py", "batches-bin").replace("python", "binary")
    with tempfile.TemporaryDirectory() as aside:
        for inside, archive in ((binary, packed), (kind.base_folder, kind.filename)):
            root = folder
            if not (folder / inside).is_dir():
                if not (folder / archive).is_file():
                    continue
                with reading(folder / archive, "an archive"), tarfile.open(folder / archive) as tar:
                    tar.extractall(aside, filter="data")
                root = Path(aside)
            with reading(folder / inside, "CIFAR's published files"):
                if inside == binary:
                    files = kind.train_list if part == "train" else kind.test_list
                    contents = [(root / inside / f"{file}.bin").read_bytes() for file, _ in files]
                    row = skipped + 3 * 32 * 32
                    rows = np.concatenate(
                        [np.frombuffer(content, np.uint8).reshape(-1, row) for content in contents]
                    )
                    images, labels = rows[:, skipped:].reshape(-1, 3, 32, 32), rows[:, skipped - 1]
                else:  # checked by their sums before they are unpickled
                    published = kind(str(root), train=part == "train")
                    images, labels = published.data, np.asarray(published.targets)
            return labelled_images(images, labels, folder / inside)
    return None


def _read_tables(paths: Sequence[Path], mode: str, limit: int | None) -> Part:
    """Read encoded images: a column image or img (a struct with bytes), and label or fine_label."""
    parts: list[Part] = []
    for path in paths:
        left = None if limit is None else limit - sum(map(len, parts))
        if left == 0:
            break
        table = read_parquet(path).slice(0, left)
        names = [
            next((name for name in known if name in table.column_names), None)
            for known in (("image", "img"), ("label", "fine_label"))
        ]
        if None in names:
            raise DataError(
                f"{path} needs a column image or img, and label or fine_label, it has "
                f"{table.column_names}"
            )
        cells, labels = table[names[0]].to_pylist(), table[names[1]].to_numpy()
        images: list[NDArray[np.uint8]] = []
        for row, cell in enumerate(cells):
            with (
                reading(f"{path}, row {row}", "an image"),
                Image.open(io.BytesIO(cell["bytes"])) as image,
            ):
                images.append(np.asarray(as_seen(image, mode)[0]))
        with reading(path, "images of one size"):
            pixels = np.stack(images)
        parts.append(labelled_images(pixels, labels, path))
    return Part(
        torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])
    )


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
        count, rest = divmod(len(array), _SEVERITIES)
        if rest or not count:
            raise ValueError(f"its shape is {array.shape}")
        return array[(severity - 1) * count : severity * count]


# CelebA's aligned faces (Liu et al. 2015) in its authors' three parts. The published images have
# 178x218 pixels. As is customary in generative modelling, the middle 140x140 of them is cut out
# (face and hair, little background) and resized bilinearly with antialiasing. Decoding 200,000
# JPEGs takes minutes, so each whole part is kept as a NumPy array beside the files.
_PARTITION, _ALIGNED = "list_eval_partition.txt", "img_align_celeba"
_FACE, _CROP = (178, 218), 140
_BOX = (19, 39, 159, 179)  # left, top, right, bottom of the crop
_CACHE = Format("cache of CelebA", 2)


def read_celeba(
    data_dir: Path | None, image_size: int, num_train: int | None, download: bool
) -> list[UInt8[Tensor, "n c h w"]]:
    """Return the three parts; validation has no more than 5,000 images."""
    directory = data_dir if download and data_dir else data_folder("celeba", data_dir)
    roots = [directory / folder for folder in ("celeba", "CelebA", "")]
    if download and not any((root / _PARTITION).is_file() for root in roots):
        fetch_images("celeba", "train", directory)
    root = next((root for root in roots if (root / _PARTITION).is_file()), None)
    archive = (root or directory) / f"{_ALIGNED}.zip"
    if root is None or not ((root / _ALIGNED).is_dir() or archive.is_file()):
        raise DataError(
            f"no files of 'celeba' under {directory}: expected celeba/{_PARTITION} and "
            f"celeba/{_ALIGNED} or celeba/{_ALIGNED}.zip; or let them be fetched with --download"
        )
    parts: dict[str, list[str]] = {"0": [], "1": [], "2": []}
    with reading(root / _PARTITION, "lines of a file name and 0, 1 or 2"):
        for line in (root / _PARTITION).read_text(encoding="utf-8").splitlines():
            name, part = line.split()
            parts[part].append(name)
    if num_train is not None and num_train > len(parts["0"]):
        raise DataError(
            f"num_train must be at most {len(parts['0'])} for 'celeba', got {num_train}"
        )
    folder = root / _ALIGNED
    if not folder.is_dir():
        with reading(archive, "an archive"):
            folder = zipfile.Path(archive) / _ALIGNED
    wanted = (("train", "0", num_train), ("validation", "1", MAX_VALIDATION), ("test", "2", None))
    return [
        _faces(root, part, folder, parts[key][:count], image_size) for part, key, count in wanted
    ]


def _faces(
    root: Path, part: str, folder: Path | zipfile.Path, names: list[str], image_size: int
) -> Tensor:
    # Count and size are in the name: a part of the part has a file of its own.
    cache = root / f"{part}-{len(names)}-crop{_CROP}-{image_size}.safetensors"
    sources = ""
    # A cache that is damaged, or of other pictures, counts as none.
    with suppress(OSError, ValueError):
        sources = _sources(folder, names)
        head, tensors = read_tensors(cache, _CACHE, mapped=True)
        if head["sources"] == sources:
            return tensors["pixels"]
    pixels = np.empty((len(names), 3, image_size, image_size), np.uint8)

    def fill(row: int) -> None:
        pixels[row] = _face(folder / names[row], image_size)

    # Pillow decodes and resizes without Python's lock.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(fill, range(len(names)))
        for _ in log.bar(rows, desc=f"celeba {part}", total=len(names), unit="image"):
            pass
    # A directory that may not be written to, or is full, costs time and nothing else.
    with suppress(OSError, SafetensorError):
        write_tensors(cache, _CACHE, {"sources": sources}, {"pixels": torch.from_numpy(pixels)})
    return torch.from_numpy(pixels)


def _sources(folder: Path | zipfile.Path, names: list[str]) -> str:
    """Return a hash of names, sizes and times of the pictures, or of the archive they are in.

    A picture that is replaced has another size or time. Hashing the contents would read 1.4 GB at
    each start, which takes longer than the cache saves.
    """
    if isinstance(folder, Path):
        files = [folder / name for name in names]
    else:
        files = [Path(str(folder.root.filename))]
    facts = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return sha256(json.dumps([names, facts]).encode()).hexdigest()


def _face(path: Path | zipfile.Path, image_size: int) -> NDArray[np.uint8]:
    with reading(path, "an image"), Image.open(io.BytesIO(path.read_bytes())) as image:
        whole, _ = as_seen(image, "RGB")
    if whole.size != _FACE:
        raise DataError(
            f"{path} must have 178x218 pixels, as the published aligned images, "
            f"got {whole.size[0]}x{whole.size[1]}"
        )
    # Pillow's `resize(box=...)` would let pixels from beyond the crop in at its border.
    face = whole.crop(_BOX).resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(face).transpose(2, 0, 1)
