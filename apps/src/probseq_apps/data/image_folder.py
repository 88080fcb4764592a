"""Images of one's own in a folder with one sub-folder per class.

Layouts: ``ROOT/CLASS/*.png`` is split 80/10/10 with equal shares of each class;
``ROOT/train/CLASS`` and ``ROOT/test/CLASS``, with ``ROOT/val/CLASS`` (or ``validation``, ``valid``)
or else a tenth of the training images for validation.

All images must be square and of one size, or ``image_size`` is given: then the shorter side is
resized to it and the middle is cut out. If every image is grey, one channel is kept; if any is in
colour, all become colour. Transparency is dropped. Hidden files, and files that aren't images by
their ending, are passed over.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from probseq_apps.data.containers import ImageData, ImageSplit
from probseq_apps.data.errors import DataError
from probseq_apps.data.splits import hold_out_validation, stratified
from probseq_apps.data.transforms import channel_statistics

ENDINGS = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
)
VALIDATION_FOLDERS = ("val", "validation", "valid")
_GREY_MODES = frozenset(("1", "L", "LA"))
# What Pillow raises on a damaged or monstrous file.
_DAMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def load_image_folder(root: Path, *, image_size: int | None = None) -> ImageData:
    """Load a folder of images.

    Args:
        root: the folder; the module's text tells its layout.
        image_size: side in pixels to resize to.

    Returns:
        Data whose mean and standard deviation are those of the training part.

    Raises:
        DataError: the folder is missing or empty, a file cannot be read, sizes are mixed, or a
            part has a class that the training part has not.
    """
    if not root.is_dir():
        raise DataError(f"image folder {root} does not exist or is no directory")
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size must be at least 1, got {image_size}")
    if (root / "train").is_dir():
        class_names, parts = _list_parts(root)
    else:
        class_names = _class_names(root)
        parts = [_list_images(root, class_names)]
    paths = [path for part in parts for path, _ in part]
    labels = torch.tensor([label for part in parts for _, label in part], dtype=torch.int64)
    images = read_images(paths, image_size)
    if len(parts) == 1:
        rows = stratified(labels, (0.1, 0.1), class_names)
    else:
        rows = torch.arange(len(labels)).split([len(part) for part in parts])
        if not parts[1]:
            kept, held = hold_out_validation(len(parts[0]))
            rows = (kept, held, rows[2])
    train, validation, test = (ImageSplit(images[part], labels[part]) for part in rows)
    mean, std = channel_statistics(train.images)
    return ImageData(f"folder:{root}", train, validation, test, mean, std, class_names)


def _list_parts(root: Path) -> tuple[tuple[str, ...], list[list[tuple[Path, int]]]]:
    class_names = _class_names(root / "train")
    if not (root / "test").is_dir():
        raise DataError(f"{root} has a folder train but no folder test: add it")
    validation = next((root / n for n in VALIDATION_FOLDERS if (root / n).is_dir()), None)
    return class_names, [
        _list_images(root / "train", class_names),
        _list_images(validation, class_names) if validation else [],
        _list_images(root / "test", class_names),
    ]


def _class_names(folder: Path) -> tuple[str, ...]:
    names = subfolder_names(folder)
    if len(names) < 2:
        raise DataError(
            f"{folder} needs at least two sub-folders, one for each class, it has {len(names)}"
        )
    return names


def subfolder_names(folder: Path) -> tuple[str, ...]:
    """Names of the folders in a folder, in order, hidden ones left out."""
    return tuple(
        sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    )


def image_paths(folder: Path) -> list[Path]:
    """Paths of the images in a folder, in order, hidden ones and other files left out."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]


def _list_images(folder: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    unknown = sorted(set(_class_names(folder)) - set(class_names))
    if unknown:
        raise DataError(f"{folder} has classes that the training part lacks: {', '.join(unknown)}")
    listing: list[tuple[Path, int]] = []
    for label, name in enumerate(class_names):
        if not (folder / name).is_dir():
            continue
        found = [(path, label) for path in image_paths(folder / name)]
        if not found:
            raise DataError(f"{folder / name} holds no images ({', '.join(sorted(ENDINGS))})")
        listing += found
    return listing


def read_images(paths: list[Path], image_size: int | None) -> UInt8[Tensor, "n c h w"]:
    """Read image files, all grey or all in colour, see the module's text.

    Raises:
        DataError: a file cannot be read, or sizes are mixed or not square without ``image_size``.
    """
    # First the headers alone: mixed sizes are refused before anything is decoded.
    grey = True
    first_size: tuple[int, int] | None = None
    for path in paths:
        size, mode = _header(path)
        grey = grey and mode in _GREY_MODES
        if image_size is None:
            first_size = first_size or size
            if size != first_size:
                raise DataError(
                    f"images must all have one size: {paths[0]} has {_by(first_size)} pixels, "
                    f"{path} has {_by(size)}; set image_size to resize them"
                )
            if size[0] != size[1]:
                raise DataError(
                    f"images must be square: {path} has {_by(size)} pixels; "
                    "set image_size to crop and resize them"
                )
    pixels = np.stack([_decode(path, "L" if grey else "RGB", image_size) for path in paths])
    images = torch.from_numpy(pixels)
    return images.unsqueeze(1) if grey else images.permute(0, 3, 1, 2).contiguous()


def _header(path: Path) -> tuple[tuple[int, int], str]:
    try:
        with Image.open(path) as image:
            size, mode = image.size, image.mode
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    if mode.startswith(("I", "F")):
        raise DataError(f"{path} has more than 8 bits a channel (mode {mode}): convert it first")
    return size, mode


def _decode(path: Path, mode: str, image_size: int | None) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            converted = image.convert(mode)
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    if image_size is not None and converted.size != (image_size, image_size):
        side = (image_size, image_size)
        converted = ImageOps.fit(converted, side, method=Image.Resampling.BILINEAR)
    return np.asarray(converted)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
