"""A loaded data set: its parts for training, validation and test, fixed splits, checks.

Letters: N rows, C channels, H and W image height and width. Permutations come from torch's CPU
generator with a seed of their own: the same rows are held out in every run and on every machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from probseq_apps.data.names import DataError

SPLIT_SEED, MAX_VALIDATION = 0, 5_000


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a data set."""

    # Images (N, C, H, W) as bytes; token numbers (N, T), padded with 0 on the right; spans (N, 2)
    # of vectors; graphs as tokens (N, T, W)
    inputs: Tensor
    targets: Tensor  # class numbers, or the numbers to predict

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, chosen: Tensor | slice) -> "Part":
        """Return some rows."""
        return Part(self.inputs[chosen], self.targets[chosen])


PartT = TypeVar("PartT", Part, Tensor)


@dataclass(frozen=True, eq=False)
class Parts(Generic[PartT]):
    """A data set in three parts."""

    name: str  # as on the command line
    train: PartT  # rows to learn from
    validation: PartT  # rows to select by; none where the split has none
    test: PartT  # rows to evaluate on
    # Of the targets; empty where these are no classes
    class_names: tuple[str, ...] = field(default=(), kw_only=True)
    # Further test sets by name, e.g. "out-of-domain" for CoLA.
    extra_tests: Mapping[str, PartT] = field(default_factory=dict[str, PartT], kw_only=True)
    # Remarks for readers of the results, e.g. that files were incomplete.
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for part in (self.train, self.validation, self.test, *self.extra_tests.values()):
            if isinstance(part, Part) and self.class_names:
                check_labels(part.targets, self.num_classes, self.name)
        for label, part in (("train", self.train), ("test", self.test)):
            if len(part) == 0:
                raise DataError(f"data set {self.name!r} has no {label} rows")

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def number_classes(
    labels: Sequence[str], source: object
) -> tuple[tuple[str, ...], Int64[Tensor, " n"]]:
    """Return the classes in order, as numbers if all are, and the number of each label's."""
    names = sorted(set(labels))  # of equal numbers, 1 and 1.0, too
    try:
        classes = tuple(sorted(names, key=float))
    except ValueError:
        classes = tuple(names)
    if len(classes) < 2:
        raise DataError(f"{source} needs rows of at least two classes, it has {classes}")
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, torch.tensor([numbers[label] for label in labels])


def check_labels(labels: Int64[Tensor, " n"], num_classes: int, source: object) -> None:
    """Raise if a label is outside 0..num_classes-1; the message names the source."""
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{source}: labels must lie in 0..{num_classes - 1}, "
            f"but row {row} has {int(labels[row])} ({len(bad)} such rows)"
        )


def permutation(size: int, seed: int = SPLIT_SEED) -> Int64[Tensor, " n"]:
    """Return a random order of ``size`` rows that depends on the seed alone."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def hold_out_validation(size: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Return rows for training and for validation, the latter 10%, at most 5,000 rows.

    CIFAR's 50,000 training images become 45,000 and 5,000 (thesis, app. B.4).
    """
    order = permutation(size)
    held = min(MAX_VALIDATION, size // 10)
    return order[held:].sort().values, order[:held].sort().values


def stratified(
    labels: Int64[Tensor, " n"], share: float, class_names: Sequence[str]
) -> tuple[Tensor, ...]:
    """Return rows for training, validation and test, with the same share of each class.

    Validation and test have `share` each, training the rest; names are for the message about a
    class of fewer than three rows.
    """
    order = permutation(len(labels))
    pieces: list[tuple[Tensor, ...]] = []
    for number, name in enumerate(class_names):
        rows = order[labels[order] == number]
        if len(rows) < 3:
            raise DataError(
                f"class {name!r} has {len(rows)} rows, but a split into training, validation and "
                "test needs at least 3: add rows or leave the class out"
            )
        held = max(1, round(share * len(rows)))
        pieces.append(rows.split([len(rows) - 2 * held, held, held]))
    return tuple(torch.cat(part).sort().values for part in zip(*pieces, strict=True))


def few_rows(
    labels: Int64[Tensor, " n"], size: int, source: object, seed: int = SPLIT_SEED
) -> Int64[Tensor, " m"]:
    """Return ``size`` rows with the same share of each class; fewer rows are among more.

    Another seed gives other rows.
    """
    if size > len(labels):
        raise DataError(f"train_size must be at most the {len(labels):,} of {source}, got {size:,}")
    order = permutation(len(labels), seed=seed)
    order_within = torch.empty(len(labels), dtype=torch.float64)
    for number in labels.unique():
        rows = order[labels[order] == number]
        order_within[rows] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    # Of equal places those that come first in the order.
    return order[order_within[order].argsort(stable=True)][:size].sort().values


def labelled_images(images: NDArray[Any], labels: NDArray[Any], source: Path) -> Part:
    """Return images as bytes (N, C, H, W) with their class numbers; the source is for messages.

    Images are bytes (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, labels integers
    (N,) or (N, 1).
    """
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.dtype != np.uint8:
        raise DataError(
            f"{source}: images must be bytes of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with "
            f"1 or 3 channels, got {images.dtype} of shape {images.shape}"
        )
    count = len(images)
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{source}: {count} images need integers of shape ({count},) as labels, got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    pixels: UInt8[Tensor, "n c h w"] = torch.from_numpy(np.array(images, order="C"))
    return Part(pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64)))
