"""Load a data set by its name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from probseq.images import channel_statistics
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.names import WORDS, DataError, data_kind, user_path
from probseq_apps.data.parts import SPLIT_SEED, Part, few_rows, permutation
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
    if reading.num_unknown and not reading.unknown:
        raise DataError(
            f"num_unknown draws others for each seed, and the vocabulary of {name!r} is learned "
            "once, without them: name the classes by unknown"
        )
    # A tokenizer that learns sees the texts for training alone, and none of unknown classes.
    classes = parts.class_names
    texts = [text for text, label in parts.train if classes[label] not in reading.unknown]
    vocab = make_tokenizer(reading.tokenizer, texts)
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
    """Return data without some classes, in all parts and in the normalisation of images."""
    names = tuple(name for n, name in enumerate(data.class_names) if n not in unknown)
    train, validation, test = (
        without_rows(part, unknown) for part in (data.train, data.validation, data.test)
    )
    extra = {name: without_rows(part, unknown) for name, part in data.extra_tests.items()}
    parts = {"train": train, "validation": validation, "test": test, "extra_tests": extra}
    data = replace(data, **parts, class_names=names)
    if isinstance(data, ImageData):
        mean, std = channel_statistics(train.inputs)
        return replace(data, mean=mean, std=std)
    return data


def with_labels(data: DataT, size: int | None, *, seed: int = SPLIT_SEED) -> DataT:
    """Return data with so many rows to train on, all where the size is None.

    Normalisation of images and vocabulary are still those of all, which need no labels.
    """
    if size is None:
        return data
    source = f"training rows of {data.name!r}"
    train = data.train.rows(few_rows(data.train.targets, size, source, seed))
    note = f"trained on {size:,} of {len(data.train):,} examples"
    return replace(data, train=train, notes=(*data.notes, note))


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
