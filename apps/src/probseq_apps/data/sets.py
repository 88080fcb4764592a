"""Load a data set by its name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.names import WORDS, DataError, data_kind, user_path
from probseq_apps.data.parts import SPLIT_SEED, Part, few_rows, permutation, wrong_labels
from probseq_apps.data.sequences import SequenceData, load_sequences
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.texts import TextData, TextParts, make_tokenizer, read_parts
from probseq_apps.data.tokenizers import encode_texts

ClassData: TypeAlias = ImageData | TextData | SequenceData
DataT = TypeVar("DataT", bound=ClassData)
_DEFAULTS = DataSettings()


def load_data(
    name: str,
    reading: DataSettings = _DEFAULTS,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    max_length: int | None = None,
) -> ClassData:
    """Load a data set: read, check, split, and turn texts into tokens.

    The set is one of ``DATA_NAMES``, ``folder:PATH`` (images), ``csv:PATH`` (texts) or
    ``sequences:PATH``. Splits are fixed, so that every run holds out the same rows; of labels, see
    `with_labels`. Nothing is written but by ``download``, which fetches missing files of the
    standard image sets.
    """
    kind = data_kind(name)
    if kind != "text" and reading.tokenizer != WORDS:
        raise DataError(f"tokenizer is for texts, and {name!r} holds {kind}s")
    if kind == "sequence":
        return load_sequences(name, reading.label_column)
    if kind == "image":
        return load_images(
            name, data_dir=data_dir, download=download, image_size=reading.image_size
        )
    if download and user_path(name) is None:
        raise DataError(f"{name!r} cannot be fetched: put its files under --data-dir yourself")
    parts = read_parts(name, reading, data_dir=data_dir)
    length = parts.default_length if max_length is None else max_length
    # A tokenizer that learns sees the texts for training alone.
    vocab = make_tokenizer(reading.tokenizer, [text for text, _ in parts.train])
    encoded = _encoded(parts, partial(encode_texts, vocab, max_length=length))
    return TextData(**encoded, vocab=vocab, max_length=length)


def unknown_classes(data: ClassData, reading: DataSettings, *, seed: int) -> list[int]:
    """Return the numbers of the classes that a seed leaves out of training, in their order."""
    names, count = data.class_names, 0 if reading.unknown else reading.num_unknown
    if missing := [name for name in reading.unknown if name not in names]:
        raise DataError(f"unknown must name classes ({', '.join(names)}), got {missing[0]!r}")
    if len(names) - max(count, len(reading.unknown)) < 2:
        raise DataError(f"unknown must leave two of the {len(names)} classes of {data.name!r}")
    if not count:
        return sorted(names.index(name) for name in reading.unknown)
    order = permutation(len(names)).tolist()
    return sorted(order[(seed * count + step) % len(names)] for step in range(count))


def without_rows(part: Part, unknown: list[int]) -> Part:
    """Return the rows of the classes that are not unknown, which are numbered anew."""
    remaining = ~torch.isin(part.targets, torch.tensor(unknown))
    targets = part.targets[remaining]
    below = (torch.tensor(unknown) < targets[:, None]).sum(1)
    return Part(part.inputs[remaining], targets - below)


def unknown_part(part: Part, unknown: list[int]) -> Part:
    """Return the rows of the unknown classes; their targets are zeros."""
    inputs = part.inputs[torch.isin(part.targets, torch.tensor(unknown))]
    return Part(inputs, torch.zeros(len(inputs), dtype=torch.int64))


def without_classes(data: DataT, unknown: list[int]) -> DataT:
    """Return data without some classes, in all parts."""
    names = tuple(name for n, name in enumerate(data.class_names) if n not in unknown)
    parts = (without_rows(part, unknown) for part in (data.train, data.validation, data.test))
    train, validation, test = parts
    extra = {name: without_rows(part, unknown) for name, part in data.extra_tests.items()}
    changes = {"train": train, "validation": validation, "test": test, "extra_tests": extra}
    return replace(data, **changes, class_names=names)


def with_labels(data: DataT, size: int | None, noise: float, *, seed: int = SPLIT_SEED) -> DataT:
    """Return data with fewer rows to train on, and with wrong labels.

    The share `noise` of the labels for training and validation is wrong; `size` None takes all
    rows. Normalisation of images and vocabulary are still those of all, which need no labels.
    """
    notes = list(data.notes)
    train, validation = data.train, data.validation
    if size is not None:
        source = f"training rows of {data.name!r}"
        train = train.rows(few_rows(train.targets, size, source, seed))
        notes.append(f"trained on {size:,} of {len(data.train):,} examples")
    if noise:
        train, validation = (
            replace(part, targets=wrong_labels(part.targets, noise, data.num_classes))
            for part in (train, validation)
        )
        notes.append(f"{100 * noise:g}% of the labels for training and validation are wrong")
    return replace(data, train=train, validation=validation, notes=tuple(notes))


def _encoded(parts: TextParts, encode: Callable[[list[str]], Tensor]) -> dict[str, Any]:
    """Return the parts of a data set with their texts as tensors."""
    train, validation, test, *extra = (
        Part(
            encode([text for text, _ in rows]),
            torch.tensor([label for _, label in rows], dtype=torch.int64),
        )
        for rows in parts.all_parts()
    )
    return {
        **{"name": parts.name, "train": train, "validation": validation, "test": test},
        "class_names": parts.class_names,
        "extra_tests": dict(zip(parts.extra_tests, extra, strict=True)),
        "notes": parts.notes,
    }
