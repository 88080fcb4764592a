"""Tables: rows of CSV, TSV and Parquet files; points with several inputs, some for testing.

Errors name the file and the line of a row.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float64

from probseq.checks import parse_number
from probseq.errors import require
from probseq_apps.data.columns import StampColumn
from probseq_apps.data.fetch import published_file
from probseq_apps.data.names import CSV_PREFIX, DataError, nearest_name, reading

T = TypeVar("T")


class Marks(NamedTuple):
    """Separator, decimal mark and encoding of a table."""

    separator: str | None = None  # between cells; None: tabs in .tsv and .tab, else commas
    decimal: str = "."  # of numbers
    encoding: str = "utf-8-sig"

    def number(self, cell: str) -> float:
        """Read a number."""
        if self.decimal == ",":
            if "." in cell:
                raise ValueError(f"numbers must have the decimal mark ',', got {cell!r}")
            cell = cell.replace(",", ".")
        elif cell.count(",") == 1:
            raise ValueError(f"a value must be a number, got {cell!r}: --decimal , reads it so")
        return parse_number(cell)


_PLAIN = Marks()


def read_rows(
    path: Path,
    columns: Sequence[tuple[str, str]] | int,
    parse: Callable[..., T],
    *,
    literal_quotes: bool = False,
    marks: Marks = _PLAIN,
) -> list[T]:
    """Parse the rows of a table that aren't blank, one at least; no cell begins with a space.

    Columns are names in the header, and what they are for, or the number of columns of a file
    without a header. `parse` takes their cells; its `ValueError` becomes a `DataError` with file
    and line. With `literal_quotes` quotation marks are letters like any other.
    """
    rows = _rows(path, literal_quotes, marks)
    if isinstance(columns, int):
        width, indices = columns, range(columns)
    else:
        header = next(rows, (1, list[str]()))[1]
        for column, purpose in columns:
            if header.count(column) != 1:
                near = None if column in header else nearest_name(column, header)
                hint = f": did you mean {near!r}?" if near else ""
                if len(header) == 1 and (other := [mark for mark in ";\t|," if mark in header[0]]):
                    hint = f": --separator {other[0]!r} separates its cells"
                if all(cell.strip().lstrip("+-")[:1].isdigit() for cell in header):
                    hint = ": its first row must name the columns"
                raise DataError(
                    f"{path} needs one column {column!r} ({purpose}) in its header, which has "
                    f"{header}{hint}"
                )
        width, indices = len(header), [header.index(column) for column, _ in columns]
    parsed: list[T] = []
    for line, row in rows:
        try:
            if len(row) != width:
                raise ValueError(f"expected {width} columns, got {len(row)}")
            parsed.append(parse(*(row[index] for index in indices)))
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    if not parsed:
        raise DataError(f"{path} must hold rows, and has none")
    return parsed


def _rows(
    path: Path, literal_quotes: bool = False, marks: Marks = _PLAIN
) -> Iterator[tuple[int, list[str]]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file")
    delimiter = marks.separator or ("\t" if path.suffix.lower() in (".tsv", ".tab") else ",")
    quoting = csv.QUOTE_NONE if literal_quotes else csv.QUOTE_MINIMAL
    with reading(path, "a table"), path.open(encoding=marks.encoding, newline="") as file:
        # strict: a quote that is never closed would swallow the rest of the file.
        reader = csv.reader(
            file,
            delimiter=delimiter,
            quoting=quoting,
            strict=True,
            skipinitialspace=not literal_quotes,
        )
        for row in reader:
            if row:
                yield reader.line_num, row


def csv_header(path: Path, marks: Marks = _PLAIN) -> list[str]:
    """Return the names in the first row, none of an empty file."""
    return next(_rows(path, marks=marks), (1, list[str]()))[1]


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a pyarrow table."""
    parquet = require("pyarrow.parquet", extra="parquet", distribution="probseq-apps")
    with reading(path, "a Parquet file"):
        return parquet.read_table(path)


_MOONS, _MOONS_TEST, _MOONS_NOISE = 600, 150, 0.1


@dataclass(frozen=True, eq=False)
class PointTable:
    """Points and targets, with one split."""

    name: str  # as on the command line
    x: Float64[np.ndarray, "n d"]  # inputs, one row a point
    y: Float64[np.ndarray, "*k n"]  # targets, or several side by side in rows
    test: Bool[np.ndarray, " n"]
    columns: tuple[str, ...]  # names of the inputs
    target_label: str  # what the targets are
    notes: tuple[str, ...] = ()  # what a reader of results must know about the data
    stamps: Float64[np.ndarray, " n"] | None = None  # the order of the points, where it is known


def load_table(name: str, data_dir: Path | None, *, seed: int) -> PointTable:
    """Read a table, or draw the two moons.

    The seed chooses the split of the published ones, or draws the points and the split.
    """
    if name == "two-moons":
        return _two_moons(seed)
    path = published_file(name, data_dir)
    table = read_parquet(path)
    columns = {column: table.column(column).to_numpy() for column in table.column_names}
    splits = [column for column in columns if column.startswith("test")]
    inputs = [column for column in columns if column != "y" and column not in splits]
    if "y" not in columns or not inputs or not splits:
        raise DataError(f"{path} needs inputs, a target y and splits test0.., it has {[*columns]}")
    x = np.stack([columns[column].astype(np.float64) for column in inputs], axis=1)
    y, test = columns["y"].astype(np.float64), columns[splits[seed % len(splits)]].astype(np.bool_)
    note = f"published split number seed modulo {len(splits)}"
    return PointTable(name, x, y, test, tuple(inputs), "y", (note,))


def read_csv_points(
    path: Path,
    inputs: Sequence[str],
    targets: Sequence[str],
    time: str | None = None,
    *,
    test_share: float,
    seed: int,
    marks: Marks = _PLAIN,
) -> PointTable:
    """Read points from columns of a CSV file with a header; a random share is for evaluation."""
    columns = [
        *((name, "inputs, --inputs") for name in inputs),
        *((name, "targets, --target") for name in targets),
    ]
    stamps = None if time is None else StampColumn(time)

    def parse(*cells: str) -> list[float]:
        at = [] if stamps is None else [stamps.parse(cells[-1])]
        return [*map(marks.number, cells[: len(columns)]), *at]

    all_columns = [*columns, *([] if time is None else [(time, "stamps, --time")])]
    rows = read_rows(path, all_columns, parse, marks=marks)
    if len(rows) < 2:
        raise DataError(f"{path} holds {len(rows)} points, and two are the fewest")
    values, count = np.array(rows), len(inputs)
    size = min(max(1, round(test_share * len(values))), len(values) - 1)
    y = values[:, count : len(columns)].T if len(targets) > 1 else values[:, count]
    test, order = _random_mask(len(values), size, seed), None if time is None else values[:, -1]
    names = (*inputs,), ", ".join(targets)
    return PointTable(f"{CSV_PREFIX}{path}", values[:, :count], y, test, *names, stamps=order)


def _two_moons(seed: int) -> PointTable:
    from sklearn.datasets import make_moons  # late: slow to import

    x, y = map(np.asarray, make_moons(_MOONS, noise=_MOONS_NOISE, random_state=seed))
    note = f"{_MOONS} points with noise of standard deviation {_MOONS_NOISE}, drawn for each seed"
    test = _random_mask(_MOONS, _MOONS_TEST, seed)
    return PointTable(
        "two-moons", x.astype(np.float64), y.astype(np.float64), test, ("x0", "x1"), "moon", (note,)
    )


def _random_mask(count: int, size: int, seed: int) -> Bool[np.ndarray, " n"]:
    """Return a mask with random rows for testing."""
    test = np.zeros(count, dtype=np.bool_)
    test[np.random.default_rng(seed).permutation(count)[:size]] = True
    return test
