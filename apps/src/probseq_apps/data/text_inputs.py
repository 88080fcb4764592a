"""From texts to what a transformer takes: token numbers, or precomputed contextual embeddings.

The thesis feeds ELMo-style embeddings for CoLA. They must be made elsewhere and come in a file; by
default tokens are numbers of a vocabulary that is learned from the training texts alone, for an
embedding that the model learns.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.containers import (
    EmbeddedTextData,
    EmbeddedTextSplit,
    TextData,
    TextSplit,
)
from probseq_apps.data.embeddings import read_embeddings
from probseq_apps.data.errors import DataError
from probseq_apps.data.text_files import Texts
from probseq_apps.data.text_sets import TextParts
from probseq_apps.data.tokenizers import Tokenizer, make_tokenizer
from probseq_apps.data.vocabulary import PAD_ID


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int
) -> Int64[Tensor, "n t"]:
    """Turn texts into token numbers (N, T), cut off at ``max_length`` and padded with 0 to it."""
    tokens = torch.full((len(texts), max_length), PAD_ID, dtype=torch.int64)
    for row, encoded in enumerate(tokenizer.encode_all(texts, max_length)):
        tokens[row, : len(encoded)] = torch.tensor(encoded)
    return tokens


def tokenized(parts: TextParts, tokenizer: str, *, max_length: int | None) -> TextData:
    """Turn texts into token numbers.

    Args:
        parts: the texts; a tokenizer that learns sees those for training alone.
        tokenizer: name or path, see ``make_tokenizer``.
        max_length: most tokens of a text, the rest is cut off; None for the set's default.

    Raises:
        DataError: ``max_length`` leaves no room, or the tokenizer is unknown, missing or damaged.
        MissingExtraError: the tokenizer needs a library that is not installed.
    """
    length = _checked_length(parts, max_length)
    vocab = make_tokenizer(tokenizer, parts.train.texts)

    def split(part: Texts) -> TextSplit:
        return TextSplit(encode_texts(vocab, part.texts, length), _labels(part))

    return TextData(
        parts.name,
        split(parts.train),
        split(parts.validation),
        split(parts.test),
        vocab,
        parts.class_names,
        length,
        {name: split(part) for name, part in parts.extra_tests.items()},
        parts.notes,
    )


def embedded(parts: TextParts, embeddings: Path, *, max_length: int | None) -> EmbeddedTextData:
    """Find the precomputed vectors of texts.

    Args:
        parts: the texts.
        embeddings: file or folder that ``write_embeddings`` wrote.
        max_length: most vectors of a text, the rest is cut off; None for the set's default.

    Raises:
        DataError: files are missing or damaged, or a text has no embedding.
    """
    length = _checked_length(parts, max_length)
    store = read_embeddings(embeddings)

    def split(part: Texts) -> EmbeddedTextSplit:
        return EmbeddedTextSplit(store.spans(part.texts, length), _labels(part))

    return EmbeddedTextData(
        parts.name,
        split(parts.train),
        split(parts.validation),
        split(parts.test),
        store.tables,
        parts.class_names,
        length,
        {name: split(part) for name, part in parts.extra_tests.items()},
        parts.notes,
    )


def _checked_length(parts: TextParts, max_length: int | None) -> int:
    length = parts.default_length if max_length is None else max_length
    if length < 1:
        raise DataError(f"max_length must be at least 1, got {length}")
    return length


def _labels(part: Texts) -> Int64[Tensor, " n"]:
    return torch.tensor(part.labels, dtype=torch.int64)
