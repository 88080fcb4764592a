"""Rows of CSV and TSV files, with their line numbers for messages."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from probseq_apps.data.errors import DataError


def csv_rows(
    path: Path, *, delimiter: str, literal_quotes: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that isn't blank.

    Args:
        path: the file, in UTF-8.
        delimiter: character between two cells.
        literal_quotes: quotation marks are letters like any other.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            quoting = csv.QUOTE_NONE if literal_quotes else csv.QUOTE_MINIMAL
            # strict: a quote that is never closed would swallow the rest of the file.
            reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


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
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file")
    delimiter = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    rows = csv_rows(path, delimiter=delimiter)
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
