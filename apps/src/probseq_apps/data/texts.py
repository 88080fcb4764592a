"""CoLA, IMDB and texts of one's own: files, and which texts are in which part.

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
be a little smaller than above. ``notes`` says how many were dropped.

Longest texts, by default: 64 tokens for CoLA, 512 for IMDB, 256 for a CSV.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probseq_apps.data.embeddings import read_embeddings
from probseq_apps.data.names import DataError, filled_data_folder, own_path, reading
from probseq_apps.data.parts import Part, Parts, hold_out_validation, permutation, stratified
from probseq_apps.data.tabular import csv_columns, csv_rows, read_parquet_table
from probseq_apps.data.tokenizers import PAD_ID, Tokenizer, make_tokenizer

TextProtocol = Literal["thesis", "official"]


@dataclass(frozen=True, eq=False)
class TextData(Parts[Part]):
    """Texts as token numbers, every part padded to ``max_length`` tokens."""

    vocab: Tokenizer
    max_length: int


@dataclass(frozen=True, eq=False)
class EmbeddedTextData(Parts[Part]):
    """Texts whose tokens are precomputed vectors.

    A row of inputs is (table, first row, number of rows) in ``tables`` (R, E), usually
    memory-mapped: a batch is padded no further than its longest text, and tables stay on disk.
    """

    tables: tuple[Tensor, ...]
    max_length: int

    @property
    def input_dim(self) -> int:
        """Width E of the vectors."""
        return self.tables[0].shape[1]

    def padded(self, spans: Int64[Tensor, "n 3"]) -> Float32[Tensor, "n t e"]:
        """Fetch the vectors of texts, on the device of ``spans``; rows of zeros are padding."""
        texts = [self.tables[k][start : start + length] for k, start, length in spans.tolist()]
        return pad_sequence(texts, batch_first=True).to(spans.device).float()


SENTIMENTS = ("neg", "pos")


class Texts(NamedTuple):
    """Texts and their class numbers, row by row."""

    texts: list[str]
    labels: list[int]


def read_cola(path: Path) -> Texts:
    """Read a file of CoLA: source, label, the author's mark, sentence; quotes are literal."""
    found = Texts([], [])
    for line, row in csv_rows(path, delimiter="\t", literal_quotes=True):
        if len(row) != 4:
            raise DataError(f"{path}, line {line}: expected 4 columns, got {len(row)}")
        found.texts.append(_checked_text(row[3], path, line))
        found.labels.append(_binary_label(row[1], path, line))
    return _not_empty(found, path)


def read_imdb(part: str, data_dir: Path) -> Texts:
    """Read a part of IMDB: ``imdb/PART*.parquet``, or the folder ``aclImdb`` as published."""
    for folder in (data_dir / "imdb", data_dir):
        tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
        if tables:
            return _read_parquet_texts(tables)
        if (folder / "aclImdb" / part).is_dir():
            return _read_review_folder(folder / "aclImdb" / part)
    raise DataError(
        f"no {part} part of 'imdb' under {data_dir}: expected imdb/{part}*.parquet or "
        f"aclImdb/{part}/pos/*.txt and neg/*.txt"
    )


def read_csv(path: Path, text_column: str, label_column: str) -> tuple[Texts, tuple[str, ...]]:
    """Return texts of one's own and the class names: the labels in order, as numbers if all are.

    Args:
        path: a file with a header; ``.tsv`` and ``.tab`` are separated by tabs, others by commas.
        text_column: name of the column of texts.
        label_column: name of the column of labels: any words or numbers.
    """
    texts: list[str] = []
    names: list[str] = []
    columns = ((text_column, "texts"), (label_column, "labels"))
    for line, (text, label) in csv_columns(path, columns):
        texts.append(_checked_text(text, path, line))
        name = label.strip()
        if name.lower() in ("", "nan"):
            raise DataError(f"{path}, line {line}: the label is missing (got {name!r})")
        names.append(name)
    class_names = _sorted_classes(set(names))
    if len(class_names) < 2:
        raise DataError(f"{path} needs rows of at least two classes, it has {class_names}")
    numbers = {name: number for number, name in enumerate(class_names)}
    return Texts(texts, [numbers[name] for name in names]), class_names


def _sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(sorted(names))


def _read_parquet_texts(paths: list[Path]) -> Texts:
    found = Texts([], [])
    for path in paths:
        table = read_parquet_table(path)
        missing = {"text", "label"} - set(table.column_names)
        if missing:
            raise DataError(f"{path} needs columns text and label, it has {table.column_names}")
        cells = zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True)
        for row, (text, label) in enumerate(cells):
            found.texts.append(_checked_text(text, path, row))
            found.labels.append(_binary_label(str(label), path, row))
    return _not_empty(found, paths[0])


def _read_review_folder(folder: Path) -> Texts:
    found = Texts([], [])
    for label, sentiment in enumerate(SENTIMENTS):
        for path in sorted((folder / sentiment).glob("*.txt")):
            with reading(path, "a text in UTF-8"):
                text = path.read_text(encoding="utf-8")
            found.texts.append(_checked_text(text, path, 1))
            found.labels.append(label)
    return _not_empty(found, folder)


def _checked_text(text: object, path: Path, line: int) -> str:
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{path}, line {line}: the text is missing (got {text!r})")
    return text


def _binary_label(label: str, path: Path, line: int) -> int:
    if label not in ("0", "1"):
        raise DataError(f"{path}, line {line}: label must be 0 or 1, got {label!r}")
    return int(label)


def _not_empty(found: Texts, path: Path) -> Texts:
    if not found.texts:
        raise DataError(f"{path} holds no texts")
    return found


_COLA_LENGTH = 64
_IMDB_LENGTH = 512
_OWN_LENGTH = 256


class TextParts(NamedTuple):
    """A text set in its parts, not yet tokenized; ``default_length`` is in tokens."""

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
        return list(dict.fromkeys(text for part in self.all_parts() for text in part.texts))

    def all_parts(self) -> list[Texts]:
        """Return training, validation, test and further test sets."""
        return [self.train, self.validation, self.test, *self.extra_tests.values()]


def read_parts(
    name: str,
    *,
    data_dir: Path | None,
    seed: int,
    split: TextProtocol,
    text_column: str,
    label_column: str,
) -> TextParts:
    """Read a text set and split it; the arguments are those of ``load_data``."""
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


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int
) -> Int64[Tensor, "n t"]:
    """Turn texts into token numbers (N, T), cut off at ``max_length`` and padded with 0 to it."""
    tokens = torch.full((len(texts), max_length), PAD_ID, dtype=torch.int64)
    for row, encoded in enumerate(tokenizer.encode_all(texts, max_length)):
        tokens[row, : len(encoded)] = torch.tensor(encoded)
    return tokens


def tokenized(parts: TextParts, tokenizer: str, *, max_length: int | None) -> TextData:
    """Return texts as token numbers; a tokenizer that learns sees those for training alone."""
    length = _checked_length(parts, max_length)
    vocab = make_tokenizer(tokenizer, parts.train.texts)
    train, validation, test, *extra = (
        Part(encode_texts(vocab, part.texts, length), torch.tensor(part.labels, dtype=torch.int64))
        for part in parts.all_parts()
    )
    return TextData(
        *(parts.name, train, validation, test, vocab, length),
        class_names=parts.class_names,
        extra_tests=dict(zip(parts.extra_tests, extra, strict=True)),
        notes=parts.notes,
    )


def embedded(parts: TextParts, embeddings: Path, *, max_length: int | None) -> EmbeddedTextData:
    """Return texts with their vectors in the file or folder that ``write_embeddings`` wrote."""
    length = _checked_length(parts, max_length)
    store = read_embeddings(embeddings)
    train, validation, test, *extra = (
        Part(store.spans(part.texts, length), torch.tensor(part.labels, dtype=torch.int64))
        for part in parts.all_parts()
    )
    return EmbeddedTextData(
        *(parts.name, train, validation, test, store.tables, length),
        class_names=parts.class_names,
        extra_tests=dict(zip(parts.extra_tests, extra, strict=True)),
        notes=parts.notes,
    )


def _checked_length(parts: TextParts, max_length: int | None) -> int:
    length = parts.default_length if max_length is None else max_length
    if length < 1:
        raise DataError(f"max_length must be at least 1, got {length}")
    return length
