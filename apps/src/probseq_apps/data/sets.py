"""Load a data set by its name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from probseq_apps.data.embeddings import read_embeddings
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.names import WORDS, DataError, data_kind, user_path
from probseq_apps.data.parts import SPLIT_SEED, Part, few_rows, wrong_labels
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.texts import (
    EmbeddedTextData,
    TextData,
    TextParts,
    make_tokenizer,
    read_parts,
)
from probseq_apps.data.tokenizers import encode_texts

ClassData: TypeAlias = ImageData | TextData | EmbeddedTextData
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

    The set is one of ``DATA_NAMES``, ``folder:PATH`` (images) or ``csv:PATH`` (texts). Splits are
    fixed, so that every run holds out the same rows; of labels, see `with_labels`. Nothing is
    written but by ``download``, which fetches missing files of the standard image sets.
    """
    tokenizer, embeddings = reading.tokenizer, reading.embeddings
    if data_kind(name) == "image":
        if tokenizer != WORDS or embeddings is not None:
            raise DataError(f"tokenizer and embeddings are for texts, and {name!r} holds images")
        return load_images(
            name, data_dir=data_dir, download=download, image_size=reading.image_size
        )
    if download and user_path(name) is None:
        raise DataError(f"{name!r} cannot be fetched: put its files under --data-dir yourself")
    if tokenizer != WORDS and embeddings is not None:
        raise DataError(
            f"embeddings take the place of the tokenizer, but got tokenizer={tokenizer!r} and "
            f"embeddings={embeddings!r}: give one of them"
        )
    parts = read_parts(name, reading, data_dir=data_dir)
    length = parts.default_length if max_length is None else max_length
    if embeddings is not None:
        store = read_embeddings(Path(embeddings))
        encoded = _encoded(parts, partial(store.spans, max_length=length))
        return EmbeddedTextData(**encoded, vectors=store.vectors, max_length=length)
    # A tokenizer that learns sees the texts for training alone.
    vocab = make_tokenizer(tokenizer, [text for text, _ in parts.train])
    encoded = _encoded(parts, partial(encode_texts, vocab, max_length=length))
    return TextData(**encoded, vocab=vocab, max_length=length)


def with_labels(data: DataT, size: int | None, noise: float, *, seed: int = SPLIT_SEED) -> DataT:
    """Return data with fewer rows to train on, and with wrong labels.

    The share `noise` of the labels for training and validation is wrong; `size` None takes all
    rows. Normalisation and vocabulary are still those of all, which need no labels.
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
