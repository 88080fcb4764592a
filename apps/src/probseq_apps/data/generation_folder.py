"""Images of one's own for generation: a folder of images, with or without classes.

Layouts: ``ROOT/*.png``, or ``ROOT/CLASS/*.png`` with any number of classes, split 81/9/10 by a
fixed permutation; ``ROOT/train`` and ``ROOT/test``, each in one of these forms, with ``ROOT/val``
(or ``validation``, ``valid``) or else a tenth of the training images for validation. For sizes and
colour see ``image_folder``.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from probseq_apps.data.errors import DataError
from probseq_apps.data.image_folder import (
    VALIDATION_FOLDERS,
    image_paths,
    read_images,
    subfolder_names,
)
from probseq_apps.data.splits import SPLIT_SEED, hold_out_validation, permutation

_FEWEST = 20  # two for the test, one for validation


class FolderImages(NamedTuple):
    """Images and, if every part lies in folders of classes, labels: training, validation, test."""

    images: tuple[UInt8[Tensor, "a c s s"], UInt8[Tensor, "b c s s"], UInt8[Tensor, "k c s s"]]
    labels: tuple[Int64[Tensor, " a"], Int64[Tensor, " b"], Int64[Tensor, " k"]] | None
    class_names: tuple[str, ...]


class _Listing(NamedTuple):
    """Paths of images and the sub-folder of each, empty where they lie in the folder itself."""

    paths: list[Path]
    classes: list[str]

    def rows(self, numbers: Tensor) -> "_Listing":
        chosen = numbers.tolist()
        return _Listing([self.paths[i] for i in chosen], [self.classes[i] for i in chosen])


def load_generation_folder(
    root: Path, *, image_size: int | None = None, num_train: int | None = None
) -> FolderImages:
    """Load a folder of images in three parts.

    Args:
        root: the folder; the module's text tells its layout.
        image_size: side in pixels to crop and resize to.
        num_train: read only so many of the training images, chosen by a fixed permutation.

    Raises:
        DataError: the folder is missing, empty or holds too few images, a file cannot be read, or
            sizes are mixed or not square without ``image_size``.
    """
    if not root.is_dir():
        raise DataError(f"image folder {root} does not exist or is no directory")
    parts = _list_parts(root) if (root / "train").is_dir() else _split(_list(root), root)
    if num_train is not None:
        count = len(parts[0].paths)
        if num_train > count:
            raise DataError(f"num_train must be at most {count} for {root}, got {num_train}")
        parts = (
            parts[0].rows(permutation(count, SPLIT_SEED)[:num_train].sort().values),
            *parts[1:],
        )
    sizes = [len(part.paths) for part in parts]
    pixels = read_images([path for part in parts for path in part.paths], image_size)
    train, validation, test = pixels.split(sizes)
    images = (train, validation, test)
    names = tuple(sorted({name for part in parts for name in part.classes}))
    if "" in names or len(names) < 2:
        return FolderImages(images, None, ())
    numbers = torch.tensor([names.index(name) for part in parts for name in part.classes])
    first, second, third = numbers.split(sizes)
    return FolderImages(images, (first, second, third), names)


def _list(folder: Path) -> _Listing:
    found = _Listing([], [])
    for name in ("", *subfolder_names(folder)):
        paths = image_paths(folder / name)
        found.paths.extend(paths)
        found.classes.extend([name] * len(paths))
    names = set(found.classes)
    if not names:
        raise DataError(f"image folder {folder} holds no images, nor do folders in it")
    if "" in names and len(names) > 1:
        raise DataError(
            f"image folder {folder} holds images and folders of images ({min(names - {''})}): "
            "leave all of them in the folder itself, or all in folders"
        )
    return found


def _list_parts(root: Path) -> tuple[_Listing, _Listing, _Listing]:
    if not (root / "test").is_dir():
        raise DataError(f"{root} has a folder train but no folder test: add it")
    train, test = _list(root / "train"), _list(root / "test")
    validation = next((root / n for n in VALIDATION_FOLDERS if (root / n).is_dir()), None)
    if validation is not None:
        return train, _list(validation), test
    kept, held = hold_out_validation(len(train.paths))
    if not len(held):
        raise DataError(
            f"{root / 'train'} needs at least 10 images, of which a tenth is for validation, or "
            f"{root / 'val'} must be there; it holds {len(train.paths)}"
        )
    return train.rows(kept), train.rows(held), test


def _split(found: _Listing, root: Path) -> tuple[_Listing, _Listing, _Listing]:
    count = len(found.paths)
    if count < _FEWEST:
        raise DataError(
            f"{root} needs at least {_FEWEST} images, for training, validation and test, "
            f"it holds {count}"
        )
    order = permutation(count, SPLIT_SEED)
    test, rest = order[: count // 10], order[count // 10 :]
    kept, held = hold_out_validation(len(rest))
    train, validation, test = (part.sort().values for part in (rest[kept], rest[held], test))
    return found.rows(train), found.rows(validation), found.rows(test)
