"""Folders of images of one's own: their layouts, what is in them, and how they are read.

The layouts are ``ROOT/*.png``, ``ROOT/CLASS/*.png`` at any depth, or ``ROOT/train`` and
``ROOT/test``, each in one of these forms, with ``ROOT/validation`` or else a tenth of the training
images for validation; ``training``, ``testing``, ``val``, ``valid`` and ``dev`` do, too, in any
case. Names that only look like those of parts are refused. A folder without parts is split by a
fixed permutation: to classify, 80/10/10 with equal shares of each class; to generate, 81/9/10.

Images must be square and of one size, or the shorter side is resized to ``image_size`` and the
middle is cut out. One image in colour makes all colour. Images are read as a viewer shows them, see
``pictures``. Notes count the images that were changed, and all that was not used, by the reason.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from probseq_apps.data.names import IMAGE_ENDINGS, DataError, reading
from probseq_apps.data.parts import Part, hold_out_validation, permutation, stratified
from probseq_apps.data.pictures import ORIENTATION, as_displayed

_PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_GREY_MODES = frozenset(("1", "L", "LA", "La"))
_FEWEST = 20  # to generate: two for the test, one for validation
_ON_THEIR_SIDE = (5, 6, 7, 8)  # orientations of EXIF
_MOST_NAMED = 10

# Paths of images, and the sub-folder of each: empty where it lies in the folder itself.
_Listing = list[tuple[Path, str]]


@dataclass(frozen=True, eq=False)
class Decoded:
    """Images of files."""

    pixels: UInt8[Tensor, "n c h w"]  # (n, c, h, w) of those that could be read
    rows: list[int]  # their numbers among the files
    notes: tuple[str, ...]  # how many were changed, and how


def read_folder(
    root: Path, *, image_size: int | None, classes: bool = False, skip_unreadable: bool = False
) -> tuple[list[Part], tuple[str, ...], tuple[str, ...]]:
    """Return training, validation and test part, the class names, and notes.

    With `classes` every part needs folders of classes; without, there may be none, nor names.
    """
    unused: Counter[str] = Counter()
    split = _folder_parts if _part_folders(root) else _split
    parts = split(root, classes, unused)
    names = tuple(sorted({name for part in parts for _, name in part}))
    if "" in names or len(names) < 2:
        names = ()
    paths = [path for part in parts for path, _ in part]
    decoded = read_images(paths, image_size, skip_unreadable=skip_unreadable)
    of_part = [number for number, part in enumerate(parts) for _ in part]
    sizes = [Counter(of_part[row] for row in decoded.rows)[number] for number in range(len(parts))]
    labels = [names.index(name) if names else 0 for part in parts for _, name in part]
    targets = torch.tensor([labels[row] for row in decoded.rows], dtype=torch.int64)
    loaded = list(map(Part, decoded.pixels.split(sizes), targets.split(sizes)))
    notes = [*decoded.notes, *filter(None, [_in_words(unused)])]
    trained = {_digest(image) for image in loaded[0].inputs}
    for part, what in zip(loaded[1:], ("validation", "test"), strict=True):
        if count := sum(_digest(image) in trained for image in part.inputs):
            notes.append(f"{count} of {len(part)} {what} images are in the training part, too")
    notes = [printable(f"{root.name}: {note}") for note in notes]
    return loaded, tuple(map(printable, names)), tuple(notes)


def printable(name: str) -> str:
    """Return a name of a file with escapes for bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _digest(image: Tensor) -> bytes:
    return blake2b(image.numpy().tobytes(), digest_size=16).digest()


def list_all(root: Path) -> _Listing:
    """Return the images of the test part, or else of the folder; raise if there are none."""
    folder = _part_folders(root).get("test", root)
    return _list(folder, False, Counter(), mixed=True)


def list_classes(root: Path) -> tuple[_Listing, str]:
    """Return the images of a folder of classes, and what is not used, in words."""
    unused: Counter[str] = Counter()
    return _list(root, True, unused), _in_words(unused)


def _in_words(unused: Counter[str]) -> str:
    counts = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(unused.items()))
    return f"not used: {counts}" if unused else ""


def _list(folder: Path, classes: bool, unused: Counter[str], *, mixed: bool = False) -> _Listing:
    """Return the images of a folder, at any depth (if `mixed`), and count what is not used."""
    if not folder.is_dir():
        raise DataError(f"image folder {folder} does not exist or is no directory")
    subfolders = _subfolders(folder)
    if classes and len(subfolders) < 2:
        raise DataError(
            f"{folder} needs at least two sub-folders, one for each class, it has {len(subfolders)}"
        )
    listing = [(path, "") for path in _images(folder, unused, without=subfolders)]
    if classes and listing:
        unused["images outside folders of classes"] += len(listing)
        listing = []
    for subfolder in subfolders:
        if _part_folders(subfolder).keys() >= {"train", "test"}:
            raise DataError(
                f"{subfolder} is in parts for training and test, which must lie in the folder "
                "itself: name it, or move them"
            )
        images = [(path, subfolder.name) for path in _images(subfolder, unused)]
        if not images:
            if classes:
                raise DataError(f"{subfolder} holds no images ({', '.join(IMAGE_ENDINGS)})")
            unused[f"folder {subfolder.name} without images"] += 1
        listing += images
    filled = {name for _, name in listing}
    if not listing:
        raise DataError(
            f"image folder {folder} holds no images ({', '.join(IMAGE_ENDINGS)}), nor do folders "
            f"in it; not used: {', '.join(unused) or 'nothing'}"
        )
    if not mixed and "" in filled and len(filled) > 1:
        raise DataError(
            f"image folder {folder} holds images and folders of images ({min(filled - {''})}): "
            "leave all of them in the folder itself, or all in folders"
        )
    return listing


def _subfolders(folder: Path) -> list[Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in paths if path.is_dir() and not path.name.startswith(".")]


def _images(folder: Path, unused: Counter[str], without: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the images in a folder and below, and count all else by the reason."""
    for path in sorted(folder.iterdir()):
        if path in without:
            continue
        if path.name.startswith("."):
            unused["hidden files and folders"] += 1
        elif path.is_dir():
            if path.is_symlink():
                unused["linked folders below others"] += 1
            else:
                yield from _images(path, unused)
        elif not path.exists():
            unused["links to nothing"] += 1
        elif path.suffix.lower() not in IMAGE_ENDINGS:
            unused[f"files with the ending {path.suffix.lower() or 'none'}"] += 1
        else:
            yield path


def _part_folders(root: Path) -> dict[str, Path]:
    """Return the folders of training, validation and test; none where there are no parts."""
    folders, chosen = _subfolders(root), dict[str, Path]()
    for part, names in _PARTS.items():
        named = [path for path in folders if path.name.casefold() in names]
        if len(named) > 1:
            listed = " and ".join(path.name for path in named)
            raise DataError(f"{root} must have one folder of the part {part}, it has {listed}")
        if named:
            chosen[part] = named[0]
    # Not the names of two classes, which would be mixed and shuffled.
    similar = [[p.name for p in folders if part in p.name.casefold()] for part in ("train", "test")]
    if all(similar) and not chosen.keys() >= {"train", "test"}:
        raise DataError(
            f"{root} must have its parts in folders train and test, it has {similar[0][0]} and "
            f"{similar[1][0]}: rename them"
        )
    return chosen


def _folder_parts(root: Path, classes: bool, unused: Counter[str]) -> list[_Listing]:
    folders = _part_folders(root)
    for part in ("train", "test"):
        if part not in folders:
            (other, *_) = (path.name for path in folders.values())
            raise DataError(f"{root} has a folder {other} but no folder {part}: add it")
    for _ in _images(root, unused, without=folders.values()):
        names = ", ".join(path.name for path in folders.values())
        unused[f"images outside the folders {names}"] += 1
    listings = {part: _list(folder, classes, unused) for part, folder in folders.items()}
    classes_learned = {name for _, name in listings["train"]}
    for part, listing in listings.items():
        if classes and (lacking := sorted({name for _, name in listing} - classes_learned)):
            raise DataError(
                f"{folders[part]} has classes that the training part lacks: {', '.join(lacking)}"
            )
    if "validation" not in listings:
        learned, held = hold_out_validation(len(listings["train"]))
        if not classes and not len(held):
            raise DataError(
                f"{folders['train']} needs at least 10 images, of which a tenth is for validation, "
                f"or {root / 'validation'} must be there; it holds {len(listings['train'])}"
            )
        listings["validation"] = _rows(listings["train"], held)
        listings["train"] = _rows(listings["train"], learned)
    return [listings[part] for part in _PARTS]


def _split(root: Path, classes: bool, unused: Counter[str]) -> list[_Listing]:
    listing = _list(root, classes, unused)
    count = len(listing)
    if classes:
        names = sorted({name for _, name in listing})
        labels = torch.tensor([names.index(name) for _, name in listing])
        return [_rows(listing, part) for part in stratified(labels, 0.1, names)]
    if count < _FEWEST:
        raise DataError(
            f"{root} needs at least {_FEWEST} images, for training, validation and test, "
            f"it holds {count}"
        )
    test, learning = permutation(count).split([count // 10, count - count // 10])
    learned, held = hold_out_validation(len(learning))
    return [
        _rows(listing, part.sort().values) for part in (learning[learned], learning[held], test)
    ]


def _rows(listing: _Listing, numbers: Tensor) -> _Listing:
    return [listing[number] for number in numbers.tolist()]


def read_images(
    paths: Sequence[Path], image_size: int | None, *, skip_unreadable: bool = False
) -> Decoded:
    """Read image files, all grey or all in colour; without a size all must be square and equal."""
    # First the headers alone: what can't be read, or has another size, is refused before anything
    # is decoded.
    broken: dict[int, str] = {}
    headers: dict[int, tuple[tuple[int, int], str]] = {}
    for row, path in enumerate(paths):
        try:
            headers[row] = _header(path)
        except DataError as error:
            broken[row] = str(error)
    if broken and not skip_unreadable:
        raise _unreadable(broken, len(paths))
    sizes = {row: size for row, (size, _) in headers.items()}
    if image_size is None:
        _check_sizes(paths, sizes)
    were_grey = sum(mode in _GREY_MODES for _, mode in headers.values())
    grey = were_grey == len(headers)
    height = width = image_size or next(iter(sizes.values()), (1, 1))[0]
    # One array that is filled, not a list that is stacked: large folders are in memory once.
    pixels = torch.empty(len(sizes), 1 if grey else 3, height, width, dtype=torch.uint8)
    rows: list[int] = []
    changes: Counter[str] = Counter()
    for row in sizes:
        try:
            image, changed = _decode(paths[row], "L" if grey else "RGB", image_size)
        except DataError as error:
            broken[row] = str(error)
            continue
        array = torch.from_numpy(np.array(image))
        pixels[len(rows)] = array[None] if grey else array.permute(2, 0, 1)
        rows.append(row)
        changes.update(changed)
    if not grey:
        changes["were grey and became colour"] = were_grey
    if broken and (not skip_unreadable or not rows):
        raise _unreadable(broken, len(paths))
    notes = [f"{count} of {len(rows)} images {how}" for how, count in changes.items() if count]
    if broken:
        notes.append(f"files that cannot be read were left out ({len(broken)}): {_listed(broken)}")
    return Decoded(pixels[: len(rows)], rows, tuple(notes))


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Return width and height, as the image is to be seen, and its mode."""
    with reading(path, "an image"), Image.open(path) as image:
        size, mode = image.size, image.mode
        # Of a PNG Pillow decodes all before it tells the orientation, which squares don't need.
        turned = size[0] != size[1] and image.getexif().get(ORIENTATION) in _ON_THEIR_SIDE
    if mode.startswith(("I", "F")):
        raise DataError(f"{path} has more than 8 bits a channel (mode {mode}): convert it first")
    width, height = size
    return ((height, width) if turned else (width, height)), mode


def _check_sizes(paths: Sequence[Path], sizes: dict[int, tuple[int, int]]) -> None:
    first = next(iter(sizes), 0)
    for row, (width, height) in sizes.items():
        if (width, height) != sizes[first] or width != height:
            sides = {paths[n]: f"{sizes[n][0]}x{sizes[n][1]} pixels" for n in (first, row)}
            each = ", ".join(f"{path} has {size}" for path, size in sides.items())
            raise DataError(
                f"images must be square and all of one size: {each}; set image_size to crop and "
                "resize them"
            )


def _decode(path: Path, mode: str, image_size: int | None) -> tuple[Image.Image, list[str]]:
    """Return an image as it is to be seen, and what was done to it."""
    with reading(path, "an image"), Image.open(path) as file:
        if image_size is not None:  # a JPEG of a telephone is decoded at an eighth of its size
            file.draft(None, (2 * image_size, 2 * image_size))
        image, changed = as_displayed(file, mode)
    if image_size is not None and image.size != (image_size, image_size):
        if image.width != image.height:
            changed.append("were cropped to their middle square")
        if (shorter := min(image.size)) != image_size:
            how = "enlarged" if shorter < image_size else "reduced"
            changed.append(f"were {how} to {image_size} pixels")
        side = (image_size, image_size)
        image = ImageOps.fit(image, side, method=Image.Resampling.BILINEAR)
    return image, changed


def _unreadable(broken: dict[int, str], total: int) -> DataError:
    return DataError(
        f"{len(broken)} of {total} images cannot be read: {_listed(broken)}; mend or remove them, "
        "or leave them out with skip_unreadable"
    )


def _listed(broken: dict[int, str]) -> str:
    named = list(broken.values())[:_MOST_NAMED]
    more = len(broken) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
