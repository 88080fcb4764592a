"""CoLA, IMDB and texts of one's own: splits, duplicates, tokens.

Splits:

- ``cola``, ``split="thesis"`` (app. B.4): the 9,078 in-domain sentences (training and in-domain
  development file together) are split at random, by the seed of the run, into 7,262 for training
  and 1,816 for test; there is no validation part. The 516 out-of-domain sentences are the extra
  test set ``"out-of-domain"``. ``split="official"``: training file for training; both development
  files, which are GLUE's development set, for test; each of the two is an extra test set too.
- ``imdb``, ``split="thesis"``: the 50,000 reviews are split at random, by the seed of the run, into
  35,000 / 5,000 / 10,000. ``split="official"``: 25,000 for test as published; of the other 25,000 a
  fixed tenth is for validation.
- CSV: a fixed split, 80/10/10 with equal shares of each class.

A text that occurs in a test set is dropped from training and validation, and one that occurs in
validation from training, so that no part is tested on what another has learned; hence the parts can
be a little smaller than above. ``TextData.notes`` says how many were dropped.

The thesis feeds ELMo-style embeddings for CoLA; here tokens are numbers of a vocabulary that is
learned from the training texts alone, for an embedding that the model learns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.containers import TextData, TextSplit
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_sets import checked_data_dir
from probseq_apps.data.splits import hold_out_validation, permutation, stratified
from probseq_apps.data.text_files import SENTIMENTS, Texts, read_cola, read_csv, read_imdb
from probseq_apps.data.vocabulary import PAD_ID, Vocabulary, build_vocabulary

TextProtocol = Literal["thesis", "official"]

COLA_LENGTH = 64
IMDB_LENGTH = 512
OWN_LENGTH = 256


def load_cola(
    data_dir: Path | None, *, seed: int, split: TextProtocol, max_length: int | None
) -> TextData:
    """Load CoLA from ``cola/{in_domain_train,in_domain_dev,out_of_domain_dev}.tsv``."""
    directory = checked_data_dir("cola", data_dir)
    folder = directory / "cola" if (directory / "cola").is_dir() else directory
    names = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")
    missing = [f"{name}.tsv" for name in names if not (folder / f"{name}.tsv").is_file()]
    if missing:
        raise DataError(f"{folder} lacks files of 'cola': {', '.join(missing)}")
    train, inside, outside = (read_cola(folder / f"{name}.tsv") for name in names)
    extra = {"out-of-domain": outside}
    if split == "thesis":
        pool = _joined(train, inside)
        order = permutation(len(pool.texts), seed)
        # 7,262 of the 9,078: four fifths.
        first, second = order.split([len(order) * 4 // 5, len(order) - len(order) * 4 // 5])
        train, test = _rows(pool, first), _rows(pool, second)
    else:
        test = _joined(inside, outside)
        extra["in-domain"] = inside
    return _tokenized(
        "cola",
        train,
        Texts([], []),
        test,
        extra,
        ("unacceptable", "acceptable"),
        COLA_LENGTH if max_length is None else max_length,
    )


def load_imdb(
    data_dir: Path | None, *, seed: int, split: TextProtocol, max_length: int | None
) -> TextData:
    """Load IMDB from ``imdb/*.parquet`` or the folder ``aclImdb``."""
    directory = checked_data_dir("imdb", data_dir)
    train, test = (read_imdb(part, directory) for part in ("train", "test"))
    if split == "thesis":
        pool = _joined(train, test)
        size = len(pool.texts)
        sizes = [size - size * 3 // 10, size // 10, size * 3 // 10 - size // 10]
        train, validation, test = (_rows(pool, p) for p in permutation(size, seed).split(sizes))
    else:
        kept, held = hold_out_validation(len(train.texts))
        train, validation = _rows(train, kept), _rows(train, held)
    return _tokenized(
        "imdb",
        train,
        validation,
        test,
        {},
        SENTIMENTS,
        IMDB_LENGTH if max_length is None else max_length,
    )


def load_csv(
    path: Path, *, max_length: int | None, text_column: str, label_column: str
) -> TextData:
    """Load a CSV or TSV file of one's own; see ``read_csv`` for its form."""
    texts, class_names = read_csv(path, text_column, label_column)
    rows = stratified(torch.tensor(texts.labels), (0.1, 0.1), class_names)
    train, validation, test = (_rows(texts, part) for part in rows)
    return _tokenized(
        f"csv:{path}",
        train,
        validation,
        test,
        {},
        class_names,
        OWN_LENGTH if max_length is None else max_length,
    )


def encode_texts(vocab: Vocabulary, texts: Sequence[str], max_length: int) -> Int64[Tensor, "n t"]:
    """Turn texts into token numbers (N, T), cut off at ``max_length`` and padded with 0 to it."""
    tokens = torch.full((len(texts), max_length), PAD_ID, dtype=torch.int64)
    for row, text in enumerate(texts):
        encoded = vocab.encode(text, max_length)
        tokens[row, : len(encoded)] = torch.tensor(encoded)
    return tokens


def _tokenized(
    name: str,
    train: Texts,
    validation: Texts,
    test: Texts,
    extra: Mapping[str, Texts],
    class_names: tuple[str, ...],
    max_length: int,
) -> TextData:
    if max_length < 1:
        raise DataError(f"max_length must be at least 1, got {max_length}")
    tested = set(test.texts).union(*(part.texts for part in extra.values()))
    validation, from_validation = _without(validation, tested)
    train, from_train = _without(train, tested.union(validation.texts))
    vocab = build_vocabulary(train.texts)

    def encoded(part: Texts) -> TextSplit:
        tokens = encode_texts(vocab, part.texts, max_length)
        return TextSplit(tokens, torch.tensor(part.labels, dtype=torch.int64))

    notes = [
        f"{name}: {count} texts dropped from {part}, since they occur in {other} too"
        for count, part, other in (
            (from_train, "training", "validation or test"),
            (from_validation, "validation", "test"),
        )
        if count
    ]
    return TextData(
        name,
        encoded(train),
        encoded(validation),
        encoded(test),
        vocab,
        class_names,
        max_length,
        {key: encoded(part) for key, part in extra.items()},
        tuple(notes),
    )


def _joined(first: Texts, second: Texts) -> Texts:
    return Texts(first.texts + second.texts, first.labels + second.labels)


def _rows(source: Texts, rows: Int64[Tensor, " n"]) -> Texts:
    chosen: list[int] = rows.tolist()
    return Texts([source.texts[row] for row in chosen], [source.labels[row] for row in chosen])


def _without(source: Texts, dropped: set[str]) -> tuple[Texts, int]:
    kept = [row for row, text in enumerate(source.texts) if text not in dropped]
    left = Texts([source.texts[row] for row in kept], [source.labels[row] for row in kept])
    return left, len(source.texts) - len(kept)
