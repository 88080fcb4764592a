"""Readers of text sets: CoLA's TSV, IMDB's Parquet or folders, CSV and TSV of one's own."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from probseq_apps.data.errors import DataError
from probseq_apps.data.tabular import csv_columns, csv_rows, read_parquet_table

SENTIMENTS = ("neg", "pos")


class Texts(NamedTuple):
    """Texts and their class numbers, row by row."""

    texts: list[str]
    labels: list[int]


def read_cola(path: Path) -> Texts:
    """Read a file of CoLA: source, label, the author's mark, sentence; quotes are literal.

    Raises:
        DataError: a row has another number of columns, a label is not 0 or 1, or there are no rows.
    """
    found = Texts([], [])
    for line, row in csv_rows(path, delimiter="\t", literal_quotes=True):
        if len(row) != 4:
            raise DataError(f"{path}, line {line}: expected 4 columns, got {len(row)}")
        found.texts.append(_checked_text(row[3], path, line))
        found.labels.append(_binary_label(row[1], path, line))
    return _not_empty(found, path)


def read_imdb(part: str, data_dir: Path) -> Texts:
    """Read a part of IMDB: ``imdb/PART*.parquet``, or the folder ``aclImdb`` as published.

    Raises:
        DataError: there are no such files, or a file is damaged.
    """
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
    """Read texts and labels of one's own.

    Args:
        path: a file with a header; ``.tsv`` and ``.tab`` are separated by tabs, others by commas.
        text_column: name of the column of texts.
        label_column: name of the column of labels: any words or numbers.

    Returns:
        Texts with class numbers, and the class names: the labels in order, as numbers if all are.

    Raises:
        DataError: the file is missing, has no such column, or has an empty text or label.
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
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path} cannot be read: {error}") from error
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
