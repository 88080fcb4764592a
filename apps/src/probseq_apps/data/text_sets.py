"""CoLA, IMDB and texts of one's own: which texts are in which part.

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
be a little smaller than above. ``TextParts.notes`` says how many were dropped.

Longest texts, by default: 64 tokens for CoLA, 512 for IMDB, 256 for a CSV.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.errors import DataError
from probseq_apps.data.names import filled_data_folder, own_path
from probseq_apps.data.splits import hold_out_validation, permutation, stratified
from probseq_apps.data.text_files import SENTIMENTS, Texts, read_cola, read_csv, read_imdb

TextProtocol = Literal["thesis", "official"]

_COLA_LENGTH = 64
_IMDB_LENGTH = 512
_OWN_LENGTH = 256


class TextParts(NamedTuple):
    """A text set in its parts, not yet tokenized; the fields are those of ``TextData``.

    ``default_length`` is the longest text in tokens, unless another is asked for.
    """

    name: str
    train: Texts
    validation: Texts
    test: Texts
    extra_tests: dict[str, Texts]
    class_names: tuple[str, ...]
    default_length: int
    notes: tuple[str, ...]

    def all_texts(self) -> list[str]:
        """Return each text once."""
        parts = (self.train, self.validation, self.test, *self.extra_tests.values())
        return list(dict.fromkeys(text for part in parts for text in part.texts))


def read_parts(
    name: str,
    *,
    data_dir: Path | None,
    seed: int,
    split: TextProtocol,
    text_column: str,
    label_column: str,
) -> TextParts:
    """Read a text set and split it; the arguments are those of ``load_data``.

    Raises:
        DataError: files are missing or damaged; the message names them.
    """
    path = own_path(name)
    if path is not None:
        return _csv_parts(path, text_column, label_column)
    read = _cola_parts if name == "cola" else _imdb_parts
    return read(filled_data_folder(name, data_dir), seed, split)


def _cola_parts(directory: Path, seed: int, split: TextProtocol) -> TextParts:
    """CoLA from ``cola/{in_domain_train,in_domain_dev,out_of_domain_dev}.tsv``."""
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
    classes = ("unacceptable", "acceptable")
    return _disjoint("cola", train, Texts([], []), test, extra, classes, _COLA_LENGTH)


def _imdb_parts(directory: Path, seed: int, split: TextProtocol) -> TextParts:
    """IMDB from ``imdb/*.parquet`` or the folder ``aclImdb``."""
    train, test = (read_imdb(part, directory) for part in ("train", "test"))
    if split == "thesis":
        pool = _joined(train, test)
        size = len(pool.texts)
        sizes = [size - size * 3 // 10, size // 10, size * 3 // 10 - size // 10]
        train, validation, test = (_rows(pool, p) for p in permutation(size, seed).split(sizes))
    else:
        kept, held = hold_out_validation(len(train.texts))
        train, validation = _rows(train, kept), _rows(train, held)
    return _disjoint("imdb", train, validation, test, {}, SENTIMENTS, _IMDB_LENGTH)


def _csv_parts(path: Path, text_column: str, label_column: str) -> TextParts:
    """A CSV or TSV file of one's own; see ``read_csv`` for its form."""
    texts, class_names = read_csv(path, text_column, label_column)
    rows = stratified(torch.tensor(texts.labels), (0.1, 0.1), class_names)
    train, validation, test = (_rows(texts, part) for part in rows)
    return _disjoint(f"csv:{path}", train, validation, test, {}, class_names, _OWN_LENGTH)


def _disjoint(
    name: str,
    train: Texts,
    validation: Texts,
    test: Texts,
    extra: Mapping[str, Texts],
    class_names: tuple[str, ...],
    default_length: int,
) -> TextParts:
    """Drop the texts of training and validation that are tested on."""
    tested = set(test.texts).union(*(part.texts for part in extra.values()))
    validation, from_validation = _without(validation, tested)
    train, from_train = _without(train, tested.union(validation.texts))
    notes = tuple(
        f"{name}: {count} texts dropped from {part}, since they occur in {other} too"
        for count, part, other in (
            (from_train, "training", "validation or test"),
            (from_validation, "validation", "test"),
        )
        if count
    )
    return TextParts(name, train, validation, test, dict(extra), class_names, default_length, notes)


def _joined(first: Texts, second: Texts) -> Texts:
    return Texts(first.texts + second.texts, first.labels + second.labels)


def _rows(source: Texts, rows: Int64[Tensor, " n"]) -> Texts:
    chosen: list[int] = rows.tolist()
    return Texts([source.texts[row] for row in chosen], [source.labels[row] for row in chosen])


def _without(source: Texts, dropped: set[str]) -> tuple[Texts, int]:
    kept = [row for row, text in enumerate(source.texts) if text not in dropped]
    left = Texts([source.texts[row] for row in kept], [source.labels[row] for row in kept])
    return left, len(source.texts) - len(kept)
