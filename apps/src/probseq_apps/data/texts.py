"""CoLA, IMDB and texts of one's own: files, and which texts are in which part.

Splits:

- ``cola``, ``split="thesis"`` (app. B.4): the 9,078 in-domain sentences of training and development
  file are split by a fixed seed into 7,262 for training and 1,816 for test, none for validation.
  The 516 out-of-domain sentences are the extra test set ``"out-of-domain"``. ``split="official"``:
  training file for training; both development files for test, and each as an extra test set.
- ``imdb``, ``split="thesis"``: the 50,000 reviews are split at random, by a fixed seed, into
  35,000 / 5,000 / 10,000. ``split="official"``: 25,000 for test as published; of the other 25,000 a
  fixed tenth is for validation.
- CSV: a fixed split, 80/10/10 with equal shares of each class.

A text that occurs in a test set is dropped from training and validation, and one that occurs in
validation from training; ``notes`` says how many were dropped. By default the longest texts have 64
tokens in CoLA, 512 in IMDB, 256 in a CSV. Tokens are words or byte pairs learned from the training
texts, or those of a pretrained tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from probseq_apps.data import parts, tokenizers
from probseq_apps.data.names import DataError, data_folder, reading, tokenizer_choice, user_path
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.tables import read_parquet, read_rows

SENTIMENTS = ("neg", "pos")
_COLA_LENGTH, _IMDB_LENGTH, _CSV_LENGTH = 64, 512, 256

# Texts with their class numbers.
Rows = list[tuple[str, int]]


@dataclass(frozen=True, eq=False)
class TextData(parts.Parts[parts.Part]):
    """Texts as token numbers, every part padded to ``max_length`` tokens."""

    vocab: tokenizers.TextTokenizer
    max_length: int


class TextParts(NamedTuple):
    """A text set in its parts, not yet tokenized; ``default_length`` is in tokens."""

    name: str
    train: Rows
    validation: Rows
    test: Rows
    extra_tests: dict[str, Rows]
    class_names: tuple[str, ...]
    default_length: int
    notes: tuple[str, ...] = ()

    def all_parts(self) -> list[Rows]:
        """Return training, validation, test and further test sets."""
        return [self.train, self.validation, self.test, *self.extra_tests.values()]

    def disjoint(self) -> "TextParts":
        """Drop the texts of training and validation that are tested on."""
        tested = {text for part in (self.test, *self.extra_tests.values()) for text, _ in part}
        validation = [row for row in self.validation if row[0] not in tested]
        used = tested.union(text for text, _ in validation)
        train = [row for row in self.train if row[0] not in used]
        notes = tuple(
            f"{self.name}: {len(before) - len(after)} texts dropped from {part}, since they occur "
            f"in {other} too"
            for before, after, part, other in (
                (self.train, train, "training", "validation or test"),
                (self.validation, validation, "validation", "test"),
            )
            if len(before) > len(after)
        )
        return self._replace(train=train, validation=validation, notes=notes)


def read_parts(name: str, reading: DataSettings, *, data_dir: Path | None) -> TextParts:
    """Read a text set and split it."""
    if (path := user_path(name)) is not None:
        return _csv_parts(path, reading.text_column, reading.label_column).disjoint()
    read = _cola_parts if name == "cola" else _imdb_parts
    return read(data_folder(name, data_dir), reading.split).disjoint()


def _cola_parts(directory: Path, split: str) -> TextParts:
    """Read CoLA from ``cola/{in_domain_train,in_domain_dev,out_of_domain_dev}.tsv``."""
    folder = directory / "cola" if (directory / "cola").is_dir() else directory
    train, inside, outside = (
        read_cola(folder / f"{name}.tsv")
        for name in ("in_domain_train", "in_domain_dev", "out_of_domain_dev")
    )
    extra = {"out-of-domain": outside}
    if split == "thesis":
        pool = train + inside
        # 7,262 of the 9,078: four fifths.
        size = len(pool) * 4 // 5
        train, test = _pieces(pool, parts.permutation(len(pool)).split([size, len(pool) - size]))
    else:
        test = inside + outside
        extra["in-domain"] = inside
    return TextParts("cola", train, [], test, extra, ("unacceptable", "acceptable"), _COLA_LENGTH)


def read_cola(path: Path) -> Rows:
    """Read a file of CoLA: source, label, the author's mark, sentence; quotes are literal."""
    return read_rows(path, 4, lambda *row: _row(row[3], row[1]), literal_quotes=True)


def _imdb_parts(directory: Path, split: str) -> TextParts:
    train, test = (_read_imdb(part, directory) for part in ("train", "test"))
    if split == "thesis":
        pool = train + test
        size, held = len(pool), len(pool) * 3 // 10
        sizes = [size - held, size // 10, held - size // 10]
        train, validation, test = _pieces(pool, parts.permutation(size).split(sizes))
    else:
        train, validation = _pieces(train, parts.hold_out_validation(len(train)))
    return TextParts("imdb", train, validation, test, {}, SENTIMENTS, _IMDB_LENGTH)


def _read_imdb(part: str, data_dir: Path) -> Rows:
    """Read a part of IMDB: ``imdb/PART*.parquet``, or the folder ``aclImdb`` as published."""
    for folder in (data_dir / "imdb", data_dir):
        rows: Rows = []
        tables = sorted((*folder.glob(f"{part}.parquet"), *folder.glob(f"{part}-*.parquet")))
        for path in tables:
            table = read_parquet(path)
            with reading(path, "a table with the columns text and label"):
                cells = zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True)
                rows += [_row(text, str(label)) for text, label in cells]
        for label, sentiment in enumerate(() if tables else SENTIMENTS):
            for path in sorted((folder / "aclImdb" / part / sentiment).glob("*.txt")):
                with reading(path, "a text in UTF-8"):
                    rows.append(_row(path.read_text(encoding="utf-8"), str(label)))
        if rows:
            return rows
    raise DataError(
        f"no {part} part of 'imdb' under {data_dir}: expected imdb/{part}*.parquet or "
        f"aclImdb/{part}/pos/*.txt and neg/*.txt"
    )


def _csv_parts(path: Path, text_column: str, label_column: str) -> TextParts:
    """Read a CSV or TSV file of texts and labels; classes are in order, as numbers if all are."""
    columns = ((text_column, "texts, --text-column"), (label_column, "labels, --label-column"))
    rows = read_rows(path, columns, _labelled)
    classes, labels = parts.number_classes([name for _, name in rows], path)
    numbered = [(text, label) for (text, _), label in zip(rows, labels.tolist(), strict=True)]
    train, validation, test = _pieces(numbered, parts.stratified(labels, 0.1, classes))
    return TextParts(f"csv:{path}", train, validation, test, {}, classes, _CSV_LENGTH)


def _labelled(text: object, label: str) -> tuple[str, str]:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the text is missing (got {text!r})")
    label = label.strip()
    if label.lower() in ("", "nan"):
        raise ValueError(f"the label is missing (got {label!r})")
    return text, label


def _row(text: object, label: str) -> tuple[str, int]:
    if label not in ("0", "1"):
        raise ValueError(f"label must be 0 or 1, got {label!r}")
    return _labelled(text, label)[0], int(label)


def _pieces(rows: Rows, chosen: Sequence[Tensor]) -> list[Rows]:
    return [[rows[row] for row in part.tolist()] for part in chosen]


def make_tokenizer(name: str, train_texts: Sequence[str]) -> tokenizers.TextTokenizer:
    """Build the tokenizer that an option names.

    The training texts teach `words` and `bpe:SIZE`; all else is the path of a `tokenizer.json`.
    """
    choice = tokenizer_choice(name)
    if isinstance(choice, Path):
        with reading(choice, "a tokenizer.json"):
            return tokenizers.read_tokenizer(choice)
    if isinstance(choice, int):
        return tokenizers.train_byte_pairs(train_texts, choice)
    return tokenizers.build_vocabulary(train_texts)
