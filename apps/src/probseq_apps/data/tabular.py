"""Rows of CSV, TSV and Parquet files, with their line numbers for messages."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probseq.errors import require
from probseq_apps.data.names import DataError, reading


def csv_rows(
    path: Path, *, delimiter: str | None = None, literal_quotes: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that isn't blank.

    Args:
        path: the file, in UTF-8.
        delimiter: character between two cells; by default a tab in `.tsv` and `.tab` files and a
            comma in others.
        literal_quotes: quotation marks are letters like any other.

    Raises:
        DataError: the file cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file")
    delimiter = delimiter or ("\t" if is_tab_separated(path) else ",")
    quoting = csv.QUOTE_NONE if literal_quotes else csv.QUOTE_MINIMAL
    with reading(path, "a table"), path.open(encoding="utf-8-sig", newline="") as file:
        # strict: a quote that is never closed would swallow the rest of the file.
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
        for row in reader:
            if row:
                yield reader.line_num, row


def is_tab_separated(path: Path) -> bool:
    """Say whether a file's name tells that tabs separate its cells."""
    return path.suffix.lower() in (".tsv", ".tab")


def csv_header(path: Path) -> list[str]:
    """Return the names in the first row, none of an empty file."""
    return next(csv_rows(path), (1, list[str]()))[1]


def csv_columns(
    path: Path, columns: Sequence[tuple[str, str]]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line number and the cells of some columns of each row below the header.

    Args:
        path: a file with a header; `.tsv` and `.tab` are separated by tabs, others by commas.
        columns: name of each column, and what it is for.

    Raises:
        DataError: the file is missing or cannot be read, its header doesn't have each column once,
            or a row has another number of cells.
    """
    rows = csv_rows(path)
    header = next(rows, (1, list[str]()))[1]
    for column, purpose in columns:
        if header.count(column) != 1:
            raise DataError(
                f"{path} needs one column {column!r} for the {purpose} in its header, "
                f"which has {header}"
            )
    places = [header.index(column) for column, _ in columns]
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: expected {len(header)} columns, got {len(row)}")
        yield line, tuple(row[place] for place in places)


def read_parquet_table(path: Path) -> Any:
    """Read a Parquet file as a pyarrow table."""
    parquet = require("pyarrow.parquet", extra="parquet", distribution="probseq-apps")
    arrow = require("pyarrow", extra="parquet", distribution="probseq-apps")
    with reading(path, "a Parquet file", arrow.ArrowException):
        return parquet.read_table(path)
