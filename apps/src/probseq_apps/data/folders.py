"""Images of one's own in a folder, with or without classes.

Layouts: ``ROOT/*.png``, ``ROOT/CLASS/*.png``, or ``ROOT/train`` and ``ROOT/test``, each in one of
these forms, with ``ROOT/val`` (or ``validation``, ``valid``) or else a tenth of the training images
for validation. A folder without parts is split by a fixed permutation: to classify, 80/10/10 with
equal shares of each class; to generate, 81/9/10.

All images must be square and of one size, or ``image_size`` is given: then the shorter side is
resized to it and the middle is cut out. If every image is grey, one channel is kept; if any is in
colour, all become colour. Transparency is dropped. Hidden files, and files that aren't images by
their ending, are passed over.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from probseq_apps.data.names import DataError, reading
from probseq_apps.data.parts import Part, hold_out_validation, permutation, stratified

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_VALIDATION_FOLDERS = ("val", "validation", "valid")
_GREY_MODES = frozenset(("1", "L", "LA"))
_FEWEST = 20  # to generate: two for the test, one for validation

# Paths of images, and the sub-folder of each: empty where it lies in the folder itself.
_Listing = list[tuple[Path, str]]


def read_folder(
    root: Path,
    *,
    image_size: int | None = None,
    num_train: int | None = None,
    classes: bool = False,
) -> tuple[list[Part], tuple[str, ...]]:
    """Return training, validation and test part, and the class names: none without classes.

    Args:
        root: the folder; the module's text tells its layout.
        image_size: side in pixels to crop and resize to.
        num_train: read only so many of the training images, chosen by a fixed permutation.
        classes: the images are to be classified; every part needs folders of classes.
    """
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size must be at least 1, got {image_size}")
    parts = _given_parts(root, classes) if (root / "train").is_dir() else _split(root, classes)
    if num_train is not None:
        count = len(parts[0])
        if num_train > count:
            raise DataError(f"num_train must be at most {count} for {root}, got {num_train}")
        parts[0] = _rows(parts[0], permutation(count)[:num_train].sort().values)
    names = tuple(sorted({name for part in parts for _, name in part}))
    if "" in names or len(names) < 2:
        names = ()
    numbers = [names.index(name) if names else 0 for part in parts for _, name in part]
    pixels = read_images([path for part in parts for path, _ in part], image_size)
    sizes = [len(part) for part in parts]
    split = zip(pixels.split(sizes), torch.tensor(numbers).split(sizes), strict=True)
    return [Part(inputs, targets) for inputs, targets in split], names


def list_all(root: Path) -> _Listing:
    """Return the images of ``ROOT/test``, or else of the folder; raise if there are none."""
    return _list(root / "test" if (root / "test").is_dir() else root, mixed=True)


def read_all(root: Path, image_size: int) -> Part:
    """Read the images that `list_all` finds; targets are zeros."""
    images = read_images([path for path, _ in list_all(root)], image_size)
    return Part(images, torch.zeros(len(images), dtype=torch.int64))


def _list(folder: Path, *, classes: bool = False, mixed: bool = False) -> _Listing:
    """Return the images of a folder and of those in it, without hidden ones, in order."""
    if not folder.is_dir():
        raise DataError(f"image folder {folder} does not exist or is no directory")
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if classes and len(names) < 2:
        raise DataError(
            f"{folder} needs at least two sub-folders, one for each class, it has {len(names)}"
        )
    found: _Listing = []
    for name in names if classes else ("", *names):
        images = [
            (path, name)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in _ENDINGS and not path.name.startswith(".")
        ]
        if classes and not images:
            raise DataError(f"{folder / name} holds no images ({', '.join(_ENDINGS)})")
        found += images
    filled = {name for _, name in found}
    if not found:
        raise DataError(f"image folder {folder} holds no images, nor do folders in it")
    if not mixed and "" in filled and len(filled) > 1:
        raise DataError(
            f"image folder {folder} holds images and folders of images ({min(filled - {''})}): "
            "leave all of them in the folder itself, or all in folders"
        )
    return found


def _given_parts(root: Path, classes: bool) -> list[_Listing]:
    if not (root / "test").is_dir():
        raise DataError(f"{root} has a folder train but no folder test: add it")
    validation = [root / n for n in _VALIDATION_FOLDERS if (root / n).is_dir()][:1]
    folders = [root / "train", *validation, root / "test"]
    parts = [_list(folder, classes=classes) for folder in folders]
    known = {name for _, name in parts[0]}
    for folder, part in zip(folders, parts, strict=True):
        if classes and (unknown := sorted({name for _, name in part} - known)):
            raise DataError(
                f"{folder} has classes that the training part lacks: {', '.join(unknown)}"
            )
    if not validation:
        kept, held = hold_out_validation(len(parts[0]))
        if not classes and not len(held):
            raise DataError(
                f"{root / 'train'} needs at least 10 images, of which a tenth is for validation, "
                f"or {root / 'val'} must be there; it holds {len(parts[0])}"
            )
        parts[:1] = [_rows(parts[0], kept), _rows(parts[0], held)]
    return parts


def _split(root: Path, classes: bool) -> list[_Listing]:
    found = _list(root, classes=classes)
    count = len(found)
    if classes:
        names = sorted({name for _, name in found})
        labels = torch.tensor([names.index(name) for _, name in found])
        return [_rows(found, part) for part in stratified(labels, 0.1, names)]
    if count < _FEWEST:
        raise DataError(
            f"{root} needs at least {_FEWEST} images, for training, validation and test, "
            f"it holds {count}"
        )
    test, rest = permutation(count).split([count // 10, count - count // 10])
    kept, held = hold_out_validation(len(rest))
    return [_rows(found, part.sort().values) for part in (rest[kept], rest[held], test)]


def _rows(found: _Listing, numbers: Tensor) -> _Listing:
    return [found[number] for number in numbers.tolist()]


def read_images(paths: Sequence[Path], image_size: int | None) -> UInt8[Tensor, "n c h w"]:
    """Read image files, all grey or all in colour, see the module's text."""
    # First the headers alone: mixed sizes are refused before anything is decoded.
    modes: set[str] = set()
    first = None
    for path in paths:
        with reading(path, "an image"), Image.open(path) as image:
            size, mode = image.size, image.mode
        if mode.startswith(("I", "F")):
            raise DataError(
                f"{path} has more than 8 bits a channel (mode {mode}): convert it first"
            )
        modes.add(mode)
        first = first or size
        if image_size is None and (size != first or size[0] != size[1]):
            raise DataError(
                f"images must be square and all of one size: {paths[0]} has {first[0]}x{first[1]} "
                f"pixels, {path} has {size[0]}x{size[1]}; set image_size to crop and resize them"
            )
    grey = modes <= _GREY_MODES
    decoded: list[np.ndarray] = []
    for path in paths:
        with reading(path, "an image"), Image.open(path) as image:
            whole = image.convert("L" if grey else "RGB")
        if image_size is not None and whole.size != (image_size, image_size):
            side = (image_size, image_size)
            whole = ImageOps.fit(whole, side, method=Image.Resampling.BILINEAR)
        decoded.append(np.asarray(whole))
    images = torch.from_numpy(np.stack(decoded))
    return images.unsqueeze(1) if grey else images.permute(0, 3, 1, 2).contiguous()
