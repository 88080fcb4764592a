"""Image sets: digits, standard sets, CelebA, folders of one's own; to classify and to generate.

Files of the standard sets are read in ``image_files``, folders of one's own in ``image_folders``.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from probseq.images import channel_statistics, match_images, to_bytes
from probseq_apps.data.image_files import IMAGE_INFO, read_celeba, read_part
from probseq_apps.data.image_folders import list_all, printable, read_folder, read_images
from probseq_apps.data.names import DataError, check_generation_name, user_path
from probseq_apps.data.parts import SPLIT_SEED, Part, Parts, hold_out_validation, stratified
from pseudovideo.beyond.gaussian_images import gaussian_images


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


@dataclass(frozen=True, eq=False, kw_only=True)
class GenerationData(Parts[Tensor]):
    """Square images of one size as bytes, (N, C, H, W) in each part.

    ``labels`` are for models of classes and for the classifier that scores samples; None where
    there are none. ``covariance`` is that of Gaussian images in -1..1 of mean 0, where it is known.
    """

    labels: PartLabels | None = None
    covariance: Float64[Tensor, "d d"] | None = None

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            if len(getattr(self, part)) == 0:
                raise DataError(f"data set {self.name!r} has no {part} images: give more")

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return self.train.shape[-1]

    @property
    def class_counts(self) -> dict[str, int]:
        """Training images of each class by its name; none without labels."""
        if self.labels is None:
            return {}
        counts = self.labels.train.bincount(minlength=len(self.class_names))
        return dict(zip(self.class_names, counts.tolist(), strict=True))


_GENERATION_SIZES = {"digits": 16, "gaussian-digits": 8, "mnist": 32, "cifar10": 32, "celeba": 64}


def load_images(
    name: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    image_size: int | None = None,
) -> ImageData:
    """Load an image set for classification.

    Validation of the standard sets is 10% of the training images, at most 5,000, by a fixed
    permutation: CIFAR has 45,000 / 5,000 / 10,000 images. They are normalised by the customary
    constants of ``IMAGE_INFO``, the digits (split 60/20/20), sets of them and folders by those of
    the training part. ``image_size`` is the side to resize the images of a folder to.
    """
    path, notes = user_path(name), ()
    if path is not None:
        name = printable(f"folder:{path}")
        parts, names, notes = read_folder(path, image_size=image_size, classes=True)
        train, validation, test = parts
    elif name == "digits":
        names = tuple("0123456789")
        train, validation, test = _digits()
    elif name == "digit-sets":
        names = ("1", "2", "3", "4")
        sizes = (10_000, 1_000, 2_000)
        train, validation, test = map(_digit_sets, _digits(), sizes)
    else:
        return _standard(name, data_dir, download)
    mean, std = channel_statistics(train.inputs)
    parts = (train, validation, test)
    return ImageData(name, *parts, mean, std, class_names=names, notes=notes)


def _digits() -> list[Part]:
    """Return scikit-learn's 1,797 grey images of 8x8 pixels, their levels 0..16 stretched."""
    from sklearn.datasets import load_digits

    levels, classes = load_digits(return_X_y=True)
    images = (torch.as_tensor(levels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    whole = Part(images, torch.as_tensor(classes, dtype=torch.int64))
    return [whole.rows(part) for part in stratified(whole.targets, 0.2, "0123456789")]


def _digit_sets(digits: Part, size: int) -> Part:
    """Return images of 2x2 digits, labelled by how many different digits each shows.

    The task of counting unique characters (Lee et al. 2019, Set Transformer, section 5.2): what a
    place shows says nothing alone, it has to be compared with the others. All counts are equally
    frequent.
    """
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    uniform = partial(torch.rand, generator=generator, dtype=torch.float64)
    distinct = torch.randint(1, 5, (size, 1), generator=generator)
    # Four different digits, of which the first `distinct` are shown, and some of these repeatedly.
    classes = uniform(size, 10).argsort(1)[:, :4]
    repeats = (uniform(size, 4) * distinct).long()
    columns = torch.arange(4).where(torch.arange(4) < distinct, repeats)
    classes = classes.gather(1, columns).gather(1, uniform(size, 4).argsort(1))
    # Of each class an image at random.
    by_class, counts = digits.targets.argsort(stable=True), digits.targets.bincount()
    start = counts.cumsum(0) - counts
    chosen = by_class[start[classes] + (uniform(size, 4) * counts[classes]).long()]
    images = rearrange(digits.inputs[chosen], "n (r c) 1 h w -> n 1 (r h) (c w)", r=2)
    return Part(images, distinct[:, 0] - 1)


def _standard(name: str, data_dir: Path | None, download: bool) -> ImageData:
    info = IMAGE_INFO[name]
    whole = read_part(name, "train", data_dir, download)
    test = read_part(name, "test", data_dir, download)
    train, validation = map(whole.rows, hold_out_validation(len(whole)))
    counts = (("train", len(whole), info.train_count), ("test", len(test), info.test_count))
    notes = tuple(
        f"{name}: the {part} files hold {count:,} of the standard {expected:,} images"
        for part, count, expected in counts
        if count != expected
    )
    parts = (train, validation, test, info.mean, info.std)
    return ImageData(name, *parts, class_names=info.class_names, notes=notes)


def load_ood_images(
    name: str, like: ImageData, *, data_dir: Path | None = None, download: bool = False
) -> Part:
    """Load test images of another set as out-of-distribution data for a model of ``like``.

    A folder needs neither classes nor parts; its targets are zeros. Of a standard set the training
    files need not be there. Images are given the channels
    and the size of ``like``. Those that occur, pixel for pixel, in ``like`` are dropped, and so are
    repeats: two images of CIFAR-100 are in CIFAR-10 too.
    """
    if name == like.name:
        raise DataError(f"out-of-distribution data must differ from {like.name!r} itself")
    path = user_path(name)
    if path is not None:
        pixels = read_images([image for image, _ in list_all(path)], like.image_size).pixels
        other = Part(pixels, torch.zeros(len(pixels), dtype=torch.int64))
    elif name in ("digits", "digit-sets"):
        other = load_images(name).test
    else:
        other = read_part(name, "test", data_dir, download)
    images = match_images(other.inputs, channels=like.channels, image_size=like.image_size)
    parts = (like.train, like.validation, like.test)
    contents = {row.tobytes() for part in parts for row in part.inputs.numpy()}
    new: list[int] = []
    for row, image in enumerate(images.numpy()):
        if (content := image.tobytes()) not in contents:
            contents.add(content)
            new.append(row)
    return Part(images, other.targets).rows(torch.tensor(new, dtype=torch.int64))


def load_generation_data(
    name: str,
    *,
    image_size: int | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    skip_unreadable: bool = False,
) -> GenerationData:
    """Load images for generation; the parts are the same in every run.

    - ``digits``: scikit-learn's, 60/20/20, enlarged from 8 to 16 pixels.
    - ``gaussian-digits``: 50,000 from a Gaussian with their covariance.
    - ``mnist``: padded with background from 28 to 32 pixels.
    - ``cifar10``: 32 pixels.
    - ``celeba``: aligned faces, the middle 140 pixels resized to 64.
    - ``folder:PATH``: images of one's own, see above.

    To another ``image_size`` images grow bilinearly (MNIST by padding) and shrink by the mean of
    whole blocks where these fit, CIFAR from 32 to 16 for example, else bilinearly with
    antialiasing. ``skip_unreadable`` leaves files of a folder out that can't be read.
    """
    check_generation_name(name)
    path = user_path(name)
    if path is not None:
        parts, names, notes = read_folder(
            path, image_size=image_size, skip_unreadable=skip_unreadable
        )
        labels = PartLabels(*(part.targets for part in parts)) if names else None
        images = [part.inputs for part in parts]
        title = printable(name)
        return GenerationData(title, *images, labels=labels, class_names=names, notes=notes)
    size = image_size or _GENERATION_SIZES[name]
    if name == "gaussian-digits":
        digits = load_generation_data("digits", image_size=size).train
        *images, covariance = gaussian_images(digits)
        return GenerationData(name, *images, covariance=covariance)
    if name == "celeba":
        note = f"celeba: aligned images, the middle 140x140 pixels resized to {size}x{size}"
        return GenerationData(name, *read_celeba(data_dir, size, download), notes=(note,))
    data = load_images(name, data_dir=data_dir, download=download)
    parts = (data.train, data.validation, data.test)
    labels = PartLabels(*(part.targets for part in parts))
    images = [part.inputs for part in parts]
    notes = data.notes
    if size != data.image_size:
        padded = name == "mnist" and size > data.image_size
        # Where the border is odd, the wider side is right and below.
        before = (size - data.image_size) // 2
        border = (before, size - data.image_size - before) * 2
        images = [functional.pad(x, border) if padded else _resized(x, size) for x in images]
        how = "padded with background" if padded else "resized"
        notes = (*notes, f"{name}: {how} from {data.image_size} to {size} pixels")
    names = data.class_names
    return GenerationData(name, *images, labels=labels, class_names=names, notes=notes)


def _resized(images: UInt8[Tensor, "n c h h"], size: int) -> UInt8[Tensor, "n c s s"]:
    block, remainder = divmod(images.shape[-1], size)
    if remainder:
        return match_images(images, channels=images.shape[1], image_size=size)
    # Chunks: the float copy of a whole training set need not fit.
    chunks = images.split(1000)
    return torch.cat([to_bytes(functional.avg_pool2d(c.float() / 255, block)) for c in chunks])
