"""Image sets: scikit-learn's digits, the standard sets, CelebA; for classifying and generating.

Files of the standard sets are read in ``image_files``, folders of one's own in ``folders``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from probseq.images import channel_statistics, match_images, to_bytes
from probseq_apps.data.folders import read_all, read_folder
from probseq_apps.data.image_files import IMAGE_INFO, read_celeba, read_part
from probseq_apps.data.names import DataError, check_generation_name, data_kind, own_path
from probseq_apps.data.parts import MAX_VALIDATION, Part, Parts, hold_out_validation, stratified


@dataclass(frozen=True, eq=False)
class ImageData(Parts[Part]):
    """Square images; ``mean`` and ``std`` are per channel, for images scaled to 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.inputs.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return self.train.inputs.shape[2]


class PartLabels(NamedTuple):
    """Class numbers of the images of each part."""

    train: Int64[Tensor, " a"]
    validation: Int64[Tensor, " b"]
    test: Int64[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class GenerationData(Parts[Tensor]):
    """Square images of one size as bytes, (N, C, H, W) in each part.

    ``labels`` are for the classifier that scores samples; None where there are none.
    """

    labels: PartLabels | None = None

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            if len(getattr(self, part)) == 0:
                raise DataError(
                    f"data set {self.name!r} has no {part} images: give more, or raise num_train"
                )

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return self.train.shape[-1]


_GENERATION_SIZES = {"digits": 16, "mnist": 32, "cifar10": 32, "celeba": 64}


def load_images(
    name: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    image_size: int | None = None,
    limit: int | None = None,
) -> ImageData:
    """Load an image set for classification.

    Validation of the standard sets is 10% of the training images, at most 5,000, by a fixed
    permutation: CIFAR has 45,000 / 5,000 / 10,000 images. They are normalised by the customary
    constants of ``IMAGE_INFO``, the digits (split 60/20/20) and folders by those of the training
    part.

    Args:
        name: one of ``IMAGE_NAMES`` or ``folder:PATH``, see ``folders``.
        data_dir: directory that holds the files of the standard sets.
        download: fetch missing files of these.
        image_size: side to resize the images of a folder to.
        limit: take no more than so many of the first training images of a standard set,
            validation included, and decode no more of them.
    """
    path = own_path(name)
    if path is not None:
        name = f"folder:{path}"
        (train, validation, test), names = read_folder(path, image_size=image_size, classes=True)
    elif name == "digits":
        names = tuple("0123456789")
        train, validation, test = _digits()
    else:
        return _standard(name, data_dir, download, limit)
    mean, std = channel_statistics(train.inputs)
    return ImageData(name, train, validation, test, mean, std, class_names=names)


def _digits() -> list[Part]:
    """Return scikit-learn's 1,797 grey images of 8x8 pixels, their levels 0..16 stretched."""
    from sklearn.datasets import load_digits

    levels, classes = load_digits(return_X_y=True)
    images = (torch.as_tensor(levels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    whole = Part(images, torch.as_tensor(classes, dtype=torch.int64))
    return [whole.rows(part) for part in stratified(whole.targets, 0.2, "0123456789")]


def _standard(name: str, data_dir: Path | None, download: bool, limit: int | None) -> ImageData:
    info = IMAGE_INFO[name]
    whole = read_part(name, "train", data_dir, download, limit)
    test = read_part(name, "test", data_dir, download)
    train, validation = map(whole.rows, hold_out_validation(len(whole)))
    notes = tuple(
        f"{name}: the {part} files hold {found:,} of the standard {expected:,} images"
        for part, found, expected in (
            ("train", len(whole), min(info.train_count, limit or info.train_count)),
            ("test", len(test), info.test_count),
        )
        if found != expected
    )
    return ImageData(
        *(name, train, validation, test, info.mean, info.std),
        class_names=info.class_names,
        notes=notes,
    )


def load_test_images(name: str, *, data_dir: Path | None = None, download: bool = False) -> Part:
    """Load the test images alone; the training files of a standard set need not be there."""
    if data_kind(name) != "image":
        raise DataError(f"{name!r} holds texts, but images are needed")
    if own_path(name) is not None or name == "digits":
        return load_images(name).test
    return read_part(name, "test", data_dir, download)


def load_ood_images(
    name: str, like: ImageData, *, data_dir: Path | None = None, download: bool = False
) -> Part:
    """Load test images of another set as out-of-distribution data for a model of ``like``.

    Of a folder all images are taken; it needs neither classes nor parts. Images are given the
    channels and the size of ``like``. Those that occur, pixel for pixel, in ``like`` are dropped,
    and so are repeats: two images of CIFAR-100 are in CIFAR-10 too. Targets are those of the other
    set, zeros for a folder.
    """
    if name == like.name:
        raise DataError(f"out-of-distribution data must differ from {like.name!r} itself")
    path = own_path(name)
    if data_kind(name) == "image" and path is not None:
        other = read_all(path, like.image_size)
    else:
        other = load_test_images(name, data_dir=data_dir, download=download)
    images = match_images(other.inputs, channels=like.channels, image_size=like.image_size)
    parts = (like.train, like.validation, like.test)
    seen = {row.tobytes() for part in parts for row in part.inputs.numpy()}
    kept: list[int] = []
    for row, image in enumerate(images.numpy()):
        if (content := image.tobytes()) not in seen:
            seen.add(content)
            kept.append(row)
    return Part(images, other.targets).rows(torch.tensor(kept, dtype=torch.int64))


def load_generation_data(
    name: str,
    *,
    image_size: int | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    num_train: int | None = None,
) -> GenerationData:
    """Load images for generation; the parts are the same in every run.

    - ``digits``: scikit-learn's, 60/20/20, enlarged from 8 to 16 pixels.
    - ``mnist``: padded with background from 28 to 32 pixels.
    - ``cifar10``: 32 pixels.
    - ``celeba``: aligned faces, the middle 140 pixels resized to 64.
    - ``folder:PATH``: images of one's own, see ``folders``.

    MNIST and CIFAR hold out a tenth of the training images, at most 5,000, for validation.

    Args:
        name: one of these.
        image_size: another side in pixels. Images grow bilinearly (MNIST by padding) and shrink by
            the mean of whole blocks where these fit, CIFAR from 32 to 16 for one, else bilinearly
            with antialiasing.
        data_dir: directory of the files of the standard sets but for ``digits``.
        download: fetch missing files into ``data_dir``.
        num_train: read only so many training images, and of MNIST and CIFAR a ninth as many for
            validation.
    """
    check_generation_name(name)
    for setting, value in (("image_size", image_size), ("num_train", num_train)):
        if value is not None and value < 1:
            raise DataError(f"{setting} must be at least 1, got {value}")
    path = own_path(name)
    if path is not None:
        parts, names = read_folder(path, image_size=image_size, num_train=num_train)
        labels = PartLabels(*(part.targets for part in parts)) if names else None
        train, validation, test = (part.inputs for part in parts)
        return GenerationData(name, train, validation, test, labels, class_names=names)
    size = image_size or _GENERATION_SIZES[name]
    if name == "celeba":
        train, validation, test = read_celeba(data_dir, size, num_train, download)
        note = f"celeba: aligned images, the middle 140x140 pixels resized to {size}x{size}"
        return GenerationData(name, train, validation, test, notes=(note,))
    # So many images that as many as asked for are left when a tenth is held out.
    limit = None if num_train is None else num_train + min(MAX_VALIDATION, -(-num_train // 9))
    data = load_images(name, data_dir=data_dir, download=download, limit=limit)
    if num_train is not None and num_train > len(data.train):
        raise DataError(
            f"num_train must be at most {len(data.train)} for {data.name!r}, got {num_train}"
        )
    parts = (data.train.rows(slice(num_train)), data.validation, data.test)
    labels = PartLabels(*(part.targets for part in parts))
    images = [part.inputs for part in parts]
    notes = data.notes
    if size != data.image_size:
        padded = name == "mnist" and size > data.image_size
        images = [(_padded if padded else _resized)(part, size) for part in images]
        how = "padded with background" if padded else "resized"
        notes = (*notes, f"{name}: {how} from {data.image_size} to {size} pixels")
    train, validation, test = images
    return GenerationData(
        *(name, train, validation, test, labels), class_names=data.class_names, notes=notes
    )


def to_unit(images: UInt8[Tensor, "*n c h w"]) -> Float[Tensor, "*n c h w"]:
    """Scale bytes 0..255 to -1..1, the range of the models."""
    return images.to(torch.float32) / 127.5 - 1


def _padded(images: UInt8[Tensor, "n c h h"], size: int) -> UInt8[Tensor, "n c s s"]:
    """Put zeros around images; where the border is odd, the wider side is right and below."""
    before = (size - images.shape[-1]) // 2
    after = size - images.shape[-1] - before
    return functional.pad(images, (before, after, before, after))


def _resized(images: UInt8[Tensor, "n c h h"], size: int) -> UInt8[Tensor, "n c s s"]:
    block, rest = divmod(images.shape[-1], size)
    if rest:
        return match_images(images, channels=images.shape[1], image_size=size)
    # Chunks: the float copy of a whole training set need not fit.
    chunks = images.split(1000)
    return torch.cat([to_bytes(functional.avg_pool2d(c.float() / 255, block)) for c in chunks])
