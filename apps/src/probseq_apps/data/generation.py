"""Data for generation: images in three parts, with labels where there are any."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from probseq_apps.data.celeba import load_celeba
from probseq_apps.data.containers import ImageData
from probseq_apps.data.digits import digits
from probseq_apps.data.errors import DataError
from probseq_apps.data.generation_folder import load_generation_folder
from probseq_apps.data.image_sets import load_image_set
from probseq_apps.data.names import check_generation_name, own_path
from probseq_apps.data.splits import MAX_VALIDATION
from probseq_apps.data.transforms import match_images, to_bytes

_DEFAULT_SIZES = {"digits": 16, "mnist": 32, "cifar10": 32, "celeba": 64}


class PartLabels(NamedTuple):
    """Class numbers of the images of each part."""

    train: Int64[Tensor, " a"]
    validation: Int64[Tensor, " b"]
    test: Int64[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class GenerationData:
    """Square images of one size as bytes.

    Attributes:
        name: as it was asked for.
        train: images (N, C, H, W) to learn from.
        validation: images to select by.
        test: images to compare with.
        labels: class numbers, for the classifier that scores samples; None where there are none.
        class_names: names of the classes, empty without labels.
        notes: what a reader of the results should know: sizes, crops, what is left out.
    """

    name: str
    train: UInt8[Tensor, "a c s s"]
    validation: UInt8[Tensor, "b c s s"]
    test: UInt8[Tensor, "k c s s"]
    labels: PartLabels | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
    - ``celeba``: aligned faces, the middle 140 pixels resized to 64, see ``celeba``.
    - ``folder:PATH``: images of one's own, see ``generation_folder``.

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

    Raises:
        DataError: unknown name, missing or damaged files, too few images, or mixed sizes.
    """
    check_generation_name(name)
    for setting, value in (("image_size", image_size), ("num_train", num_train)):
        if value is not None and value < 1:
            raise DataError(f"{setting} must be at least 1, got {value}")
    path = own_path(name)
    if path is not None:
        found = load_generation_folder(path, image_size=image_size, num_train=num_train)
        labels = None if found.labels is None else PartLabels(*found.labels)
        return GenerationData(name, *found.images, labels, found.class_names)
    size = image_size or _DEFAULT_SIZES[name]
    if name == "celeba":
        parts = load_celeba(data_dir, image_size=size, num_train=num_train, download=download)
        note = f"celeba: aligned images, the middle 140x140 pixels resized to {size}x{size}"
        return GenerationData(name, *parts, notes=(note,))
    if name == "digits":
        data = digits()
    else:
        data = load_image_set(name, data_dir, download=download, limit=_with_held_out(num_train))
    return _prepared(data, size, num_train)


def to_unit(images: UInt8[Tensor, "*n c h w"]) -> Float[Tensor, "*n c h w"]:
    """Scale bytes 0..255 to -1..1, the range of the models."""
    return images.to(torch.float32) / 127.5 - 1


def _with_held_out(num_train: int | None) -> int | None:
    """So many images that as many as asked for are left when a tenth is held out."""
    return None if num_train is None else num_train + min(MAX_VALIDATION, -(-num_train // 9))


def _prepared(data: ImageData, size: int, num_train: int | None) -> GenerationData:
    if num_train is not None and num_train > len(data.train):
        raise DataError(
            f"num_train must be at most {len(data.train)} for {data.name!r}, got {num_train}"
        )
    parts = (data.train, data.validation, data.test)
    images, labels = [part.images for part in parts], [part.labels for part in parts]
    images[0], labels[0] = images[0][:num_train], labels[0][:num_train]
    notes = data.notes
    if size != data.image_size:
        padded = data.name == "mnist" and size > data.image_size
        change = _padded if padded else _resized
        images = [change(part, size) for part in images]
        how = "padded with background" if padded else "resized"
        notes = (*notes, f"{data.name}: {how} from {data.image_size} to {size} pixels")
    train, validation, test = images
    return GenerationData(
        data.name, train, validation, test, PartLabels(*labels), data.class_names, notes
    )


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
