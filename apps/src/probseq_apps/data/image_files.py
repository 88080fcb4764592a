"""Files of the standard image sets and of CelebA: those of their authors, NPZ and Parquet.

Nothing is unpickled but CIFAR's Python files, once torchvision has found their published MD5 sums.
"""

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from probseq_apps.data.fetch import fetch_images
from probseq_apps.data.names import DataError, filled_data_folder, reading
from probseq_apps.data.parts import MAX_VALIDATION, Part, check_labels, image_tensor, label_tensor
from probseq_apps.data.tabular import read_parquet_table
from probseq_apps.engine import log

Bytes = UInt8[Tensor, "n c h w"]

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
    ``folders`` are the folders under the data directory that may hold the files.
    """

    channels: int
    size: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_count: int
    test_count: int
    folders: tuple[str, ...]
    formats: str


IMAGE_INFO: dict[str, ImageInfo] = {
    "mnist": ImageInfo(
        channels=1,
        size=28,
        class_names=_TEN_DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        train_count=60_000,
        test_count=10_000,
        folders=("mnist", "MNIST", "MNIST/raw"),
        formats="mnist/mnist.npz, mnist/{part}*.parquet or MNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "fashion-mnist": ImageInfo(
        channels=1,
        size=28,
        class_names=tuple(_FASHION.split(",")),
        mean=(0.2860,),
        std=(0.3530,),
        train_count=60_000,
        test_count=10_000,
        folders=(
            "fashion-mnist",
            "fashion_mnist",
            "FashionMNIST",
            "FashionMNIST/raw",
            "fashion_mnist_test_part",
        ),
        formats="fashion-mnist/*.npz, fashion-mnist/{part}*.parquet or "
        "FashionMNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "cifar10": ImageInfo(
        channels=3,
        size=32,
        class_names=tuple(_CIFAR10.split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        train_count=50_000,
        test_count=10_000,
        folders=("cifar10", "CIFAR10"),
        formats="cifar10/{part}*.parquet, cifar-10-batches-bin, cifar-10-batches-py or their "
        ".tar.gz archives",
    ),
    "cifar100": ImageInfo(
        channels=3,
        size=32,
        class_names=tuple(_CIFAR100.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        train_count=50_000,
        test_count=10_000,
        folders=("cifar100", "CIFAR100"),
        formats="cifar100/{part}*.parquet, cifar-100-binary, cifar-100-python or their .tar.gz "
        "archives",
    ),
    "svhn": ImageInfo(
        channels=3,
        size=32,
        class_names=_TEN_DIGITS,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        train_count=73_257,
        test_count=26_032,
        folders=("svhn", "SVHN"),
        formats="{part}_32x32.mat, svhn/{part}_32x32.mat or svhn/{part}*.parquet",
    ),
}


def missing_files(name: str, data_dir: Path | None, what: str) -> DataError:
    """Return the error that tells where files are expected."""
    expected = IMAGE_INFO[name].formats.format(part="test")
    return DataError(
        f"no {what} of {name!r} under {data_dir}: expected {expected}; "
        "or let them be fetched with --download"
    )


def find_part(
    name: str,
    part: Literal["train", "test"],
    data_dir: Path | None,
    download: bool,
    limit: int | None = None,
) -> Part | None:
    """Read the training or test part of a standard set; None if there are no files of it."""
    # Files that are to be fetched need neither a directory that exists nor one with content.
    directory = data_dir if download and data_dir else filled_data_folder(name, data_dir)
    found = _search(name, part, directory, limit)
    if found is None and download:
        fetch_images(name, part, directory)
        found = _search(name, part, directory, limit)
    return found and Part(found.inputs[:limit], found.targets[:limit])


def _search(name: str, part: str, data_dir: Path, limit: int | None) -> Part | None:
    info = IMAGE_INFO[name]
    # The directory itself is searched only for names that belong to one set alone: an IDX or
    # Parquet file there could be MNIST as well as Fashion-MNIST.
    for folder in (*(data_dir / folder for folder in info.folders), data_dir):
        found = None
        if folder.is_dir():
            found = None if folder == data_dir else _read_shared(info, part, folder, limit)
            found = found or _read_own(name, part, folder)
        if found:
            expected = (info.channels, info.size, info.size)
            if found.inputs.shape[1:] != expected:
                raise DataError(
                    f"{folder}: images of {name} must have shape (channels, height, width)="
                    f"{expected}, got {tuple(found.inputs.shape[1:])}"
                )
            check_labels(found.targets, len(info.class_names), folder)
            return found
    return None


def _part(images: NDArray[Any], labels: NDArray[Any], path: Path) -> Part:
    pixels = image_tensor(images, path)
    return Part(pixels, label_tensor(labels, len(pixels), path))


def _read_shared(info: ImageInfo, part: str, folder: Path, limit: int | None) -> Part | None:
    """Read what has the same names for several sets: Parquet, NPZ and IDX files."""
    tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
    if tables:
        return _read_parquet(tables, "L" if info.channels == 1 else "RGB", limit)
    for path in sorted(folder.glob("*.npz")):
        # Opened here: of a damaged archive numpy leaves its own file open.
        with (
            reading(path, "an NPZ file"),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            if f"x_{part}" in arrays and f"y_{part}" in arrays:
                return _part(arrays[f"x_{part}"], arrays[f"y_{part}"], path)
    prefix = folder / ("train" if part == "train" else "t10k")
    pair = [
        next(
            (path for end in ("", ".gz") if (path := Path(f"{prefix}-{what}{end}")).is_file()), None
        )
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    if pair[0] and pair[1]:
        return _part(_read_idx(pair[0]), _read_idx(pair[1]), pair[0])
    if any(pair):
        raise DataError(f"{folder} has only one of {prefix.name}-images and {prefix.name}-labels")
    return None


def _read_idx(path: Path) -> NDArray[Any]:
    """Read an IDX file, gzipped or not."""
    from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

    with reading(path, "an IDX file of bytes"), tempfile.NamedTemporaryFile() as plain:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                shutil.copyfileobj(packed, plain)
            plain.flush()
        source = plain.name if path.suffix == ".gz" else str(path)
        return read_sn3_pascalvincent_tensor(source).numpy()


class _Cifar(NamedTuple):
    """Published binary files: folder, archive, and in a row the bytes of labels, fine one last."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int


_CIFAR = {
    "cifar10": _Cifar(
        *("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        1,
    ),
    "cifar100": _Cifar(
        "cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), ("test.bin",), 2
    ),
}


def _read_own(name: str, part: str, folder: Path) -> Part | None:
    """Read the files of the authors of CIFAR and SVHN."""
    from torchvision.datasets import CIFAR10, CIFAR100, SVHN

    if name == "svhn" and (path := folder / f"{part}_32x32.mat").is_file():
        with reading(path, "SVHN's published file"):
            found = SVHN(str(folder), split=part)
        return _part(found.data, found.labels, path)
    if name not in _CIFAR:
        return None
    binary, kind = _CIFAR[name], CIFAR10 if name == "cifar10" else CIFAR100
    with tempfile.TemporaryDirectory() as aside:
        for inside, archive in (binary[:2], (kind.base_folder, kind.filename)):
            root = folder
            if not (folder / inside).is_dir():
                if not (folder / archive).is_file():
                    continue
                with reading(folder / archive, "an archive"), tarfile.open(folder / archive) as tar:
                    tar.extractall(aside, filter="data")
                root = Path(aside)
            # Python's own files are checked by their sums before they are unpickled.
            with reading(folder / inside, "CIFAR's published files"):
                if inside == binary.folder:
                    return _binary_cifar(binary, part, root / inside)
                found = kind(str(root), train=part == "train")
                return _part(found.data, np.asarray(found.targets), folder / inside)
    return None


def _binary_cifar(binary: _Cifar, part: str, folder: Path) -> Part:
    row = binary.label_bytes + 3 * 32 * 32
    files = binary.train if part == "train" else binary.test
    rows = np.concatenate(
        [np.frombuffer((folder / file).read_bytes(), np.uint8).reshape(-1, row) for file in files]
    )
    images = rows[:, binary.label_bytes :].reshape(-1, 3, 32, 32)
    return _part(images, rows[:, binary.label_bytes - 1], folder)


def _read_parquet(paths: Sequence[Path], mode: str, limit: int | None) -> Part:
    """Read encoded images: a column image or img (a struct with bytes), and label or fine_label."""
    parts: list[Part] = []
    for path in paths:
        left = None if limit is None else limit - sum(map(len, parts))
        if left == 0:
            break
        table = read_parquet_table(path).slice(0, left)
        encoded = table[_column(table, ("image", "img"), path)].to_pylist()
        classes = table[_column(table, ("label", "fine_label"), path)].to_numpy()
        decoded: list[NDArray[np.uint8]] = []
        for row, cell in enumerate(encoded):
            with (
                reading(path, f"a table of images (row {row})", Image.DecompressionBombError),
                Image.open(io.BytesIO(cell["bytes"])) as image,
            ):
                decoded.append(np.asarray(image.convert(mode)))
        if len({image.shape for image in decoded}) != 1:
            raise DataError(
                f"{path}: images must all have one size, and there must be at least one"
            )
        parts.append(_part(np.stack(decoded), classes, path))
    return Part(
        torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])
    )


def _column(table: Any, names: tuple[str, ...], path: Path) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise DataError(f"{path} needs a column {' or '.join(names)}, it has {table.column_names}")


# CelebA's aligned faces (Liu et al. 2015) in its authors' three parts. The published images have
# 178x218 pixels. As is customary in generative modelling, the middle 140x140 of them is cut out
# (face and hair, little background) and resized bilinearly with antialiasing. Decoding 200,000
# JPEGs takes minutes, so each whole part is kept as a NumPy array beside the files.
_PARTITION, _ALIGNED = "list_eval_partition.txt", "img_align_celeba"
_FACE, _CROP = (178, 218), 140
_BOX = (19, 39, 159, 179)  # left, top, right, bottom of the crop


def read_celeba(
    data_dir: Path | None, image_size: int, num_train: int | None, download: bool
) -> list[Bytes]:
    """Return the three parts; validation has no more than 5,000 images."""
    directory = data_dir if download and data_dir else filled_data_folder("celeba", data_dir)
    roots = [directory / folder for folder in ("celeba", "CelebA", "")]
    if download and not any((root / _PARTITION).is_file() for root in roots):
        fetch_images("celeba", "train", directory)
    root = next((root for root in roots if (root / _PARTITION).is_file()), None)
    if root is None:
        raise DataError(
            f"no files of 'celeba' under {directory}: expected celeba/{_PARTITION} and "
            f"celeba/{_ALIGNED} or celeba/{_ALIGNED}.zip; or let them be fetched with --download"
        )
    parts: dict[str, list[str]] = {"0": [], "1": [], "2": []}
    for number, line in enumerate((root / _PARTITION).read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in parts:
            raise DataError(
                f"{root / _PARTITION}: line {number} must hold a file name and 0, 1 or 2: {line!r}"
            )
        parts[words[1]].append(words[0])
    if num_train is not None and num_train > len(parts["0"]):
        raise DataError(
            f"num_train must be at most {len(parts['0'])} for 'celeba', got {num_train}"
        )
    folder, archive = root / _ALIGNED, root / f"{_ALIGNED}.zip"
    if not folder.is_dir() and not archive.is_file():
        raise DataError(f"{root} has {_PARTITION}, but neither {_ALIGNED} nor {archive.name}")
    wanted = (("train", "0", num_train), ("validation", "1", MAX_VALIDATION), ("test", "2", None))
    with contextlib.ExitStack() as stack:
        read = _reader(folder, archive, stack)
        return [
            _decoded(root, part, parts[key][:count], image_size, read)
            for part, key, count in wanted
        ]


def _reader(folder: Path, archive: Path, stack: contextlib.ExitStack) -> Callable[[str], bytes]:
    """Return what reads an encoded image by its name, from the folder or out of the archive."""
    if folder.is_dir():
        return lambda name: (folder / name).read_bytes()
    with reading(archive, "an archive"):
        opened = stack.enter_context(ZipFile(archive))
    return lambda name: opened.read(f"{folder.name}/{name}")


def _decoded(
    root: Path, part: str, names: list[str], image_size: int, read: Callable[[str], bytes]
) -> Bytes:
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
        pixels[row] = _face(root / _ALIGNED / names[row], image_size, read)

    # Pillow decodes and resizes without Python's lock.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        rows = pool.map(fill, range(len(names)))
        for _ in log.bar(rows, desc=f"celeba {part}", total=len(names), unit="image"):
            pass
    # A directory that may not be written to, or is full, costs time and nothing else.
    with contextlib.suppress(OSError):
        _store(kept, pixels)
    return torch.from_numpy(pixels)


def _face(path: Path, image_size: int, read: Callable[[str], bytes]) -> NDArray[np.uint8]:
    with (
        reading(path, "an image", Image.DecompressionBombError),
        Image.open(io.BytesIO(read(path.name))) as image,
    ):
        whole = image.convert("RGB")
    if whole.size != _FACE:
        raise DataError(
            f"{path} must have 178x218 pixels, as the published aligned images, "
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
