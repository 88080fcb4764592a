"""The standard image sets: find their files, check them, split them."""

from pathlib import Path
from typing import Literal, NoReturn

from probseq_apps.data.cifar_files import LAYOUTS, read_cifar
from probseq_apps.data.containers import ImageData, ImageSplit, check_labels
from probseq_apps.data.download import download_images
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_files import (
    Images,
    Labels,
    read_idx_pair,
    read_mat,
    read_npz,
    read_parquet_images,
)
from probseq_apps.data.image_info import IMAGE_INFO, ImageInfo
from probseq_apps.data.names import filled_data_folder
from probseq_apps.data.splits import hold_out_validation

Part = Literal["train", "test"]


def load_image_set(
    name: str, data_dir: Path | None, *, download: bool = False, limit: int | None = None
) -> ImageData:
    """Load a standard image set in training, validation and test part.

    Validation is 10% of the training images, at most 5,000, by a fixed permutation: CIFAR has
    45,000 / 5,000 / 10,000 images. Normalisation uses the customary constants of ``IMAGE_INFO``.

    Args:
        name: a name in ``IMAGE_INFO``.
        data_dir: directory that holds the files.
        download: fetch missing files into ``data_dir`` first.
        limit: take no more than so many of the first training images, validation included, and
            decode no more of them.

    Raises:
        DataError: files are missing, damaged, or of another kind.
    """
    info = IMAGE_INFO[name]
    whole = find_part(name, "train", data_dir, download=download, limit=limit)
    test = find_part(name, "test", data_dir, download=download)
    if test is None or whole is None:
        _refuse_missing(name, data_dir, test_found=test is not None, train_found=whole is not None)
    rows = hold_out_validation(len(whole))
    train, validation = (ImageSplit(whole.images[part], whole.labels[part]) for part in rows)
    notes = [
        f"{name}: the {part} files hold {found:,} of the standard {expected:,} images"
        for part, found, expected in (
            ("train", len(whole), min(info.train_count, limit or info.train_count)),
            ("test", len(test), info.test_count),
        )
        if found != expected
    ]
    return ImageData(
        name, train, validation, test, info.mean, info.std, info.class_names, tuple(notes)
    )


def load_image_test(name: str, data_dir: Path | None, *, download: bool = False) -> ImageSplit:
    """Load the test part alone; the training files need not be there."""
    test = find_part(name, "test", data_dir, download=download)
    if test is None:
        _refuse_missing(name, data_dir, test_found=False, train_found=False)
    return test


def find_part(
    name: str,
    part: Part,
    data_dir: Path | None,
    *,
    download: bool = False,
    limit: int | None = None,
) -> ImageSplit | None:
    """Read the training or test part of a standard set; None if there are no files of it.

    Args:
        name: a name in ``IMAGE_INFO``.
        part: which part.
        data_dir: directory that holds the files.
        download: fetch missing files into ``data_dir`` first.
        limit: take the first images only.

    Raises:
        DataError: the directory is missing, or files are damaged or of another kind.
    """
    # Files that are to be fetched need neither a directory that exists nor one with content.
    directory = data_dir if download and data_dir else filled_data_folder(name, data_dir)
    found = _search(name, part, directory, limit)
    if found is None and download:
        download_images(name, part, directory)
        found = _search(name, part, directory, limit)
    return found and ImageSplit(found.images[:limit], found.labels[:limit])


def _search(name: str, part: Part, data_dir: Path, limit: int | None) -> ImageSplit | None:
    info = IMAGE_INFO[name]
    for folder in info.folders:
        if found := _read_folder(name, part, data_dir / folder, limit):
            return _checked(found, info, data_dir / folder, name)
    # The directory itself is searched only for names that belong to one set alone: an IDX or
    # Parquet file there could be MNIST as well as Fashion-MNIST.
    if found := _read_named_files(name, part, data_dir):
        return _checked(found, info, data_dir, name)
    return None


def _read_folder(
    name: str, part: Part, folder: Path, limit: int | None
) -> tuple[Images, Labels] | None:
    if not folder.is_dir():
        return None
    info = IMAGE_INFO[name]
    tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
    if tables:
        return read_parquet_images(tables, "L" if info.channels == 1 else "RGB", limit=limit)
    for archive in sorted(folder.glob("*.npz")):
        if found := read_npz(archive, part):
            return found
    prefix = "train" if part == "train" else "t10k"
    images = _plain_or_gzipped(folder / f"{prefix}-images-idx3-ubyte")
    labels = _plain_or_gzipped(folder / f"{prefix}-labels-idx1-ubyte")
    if images and labels:
        return read_idx_pair(images, labels)
    if images or labels:
        raise DataError(f"{folder} has only one of {prefix}-images and {prefix}-labels")
    return _read_named_files(name, part, folder)


def _read_named_files(name: str, part: Part, folder: Path) -> tuple[Images, Labels] | None:
    if name in LAYOUTS:
        return read_cifar(name, part, folder)
    if name == "svhn" and (path := folder / f"{part}_32x32.mat").is_file():
        return read_mat(path)
    return None


def _plain_or_gzipped(path: Path) -> Path | None:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None


def _checked(found: tuple[Images, Labels], info: ImageInfo, source: Path, name: str) -> ImageSplit:
    images, labels = found
    expected = (info.channels, info.size, info.size)
    if images.shape[1:] != expected:
        raise DataError(
            f"{source}: images of {name} must have shape (channels, height, width)={expected}, "
            f"got {tuple(images.shape[1:])}"
        )
    check_labels(labels, len(info.class_names), source)
    return ImageSplit(images, labels)


def _refuse_missing(
    name: str, data_dir: Path | None, *, test_found: bool, train_found: bool
) -> NoReturn:
    formats = IMAGE_INFO[name].formats
    if test_found:
        raise DataError(
            f"only the test part of {name!r} is under {data_dir}: it can serve as "
            f"out-of-distribution data, but training needs {formats.format(part='train')}"
        )
    what = "test part" if train_found else "files"
    raise DataError(
        f"no {what} of {name!r} under {data_dir}: expected {formats.format(part='test')}; "
        "or let them be fetched with --download"
    )
