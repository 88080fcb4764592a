"""Series of many channels that share their time stamps, and their CSV files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from probseq_apps.data.csv_rows import csv_rows
from probseq_apps.data.errors import DataError
from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.data.series import parse_number, parse_stamp

_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, eq=False)
class ChannelSeries:
    """Channels over time.

    Attributes:
        name: as on the command line.
        time: stamps, not decreasing.
        values: one row per stamp.
        channels: names of the columns of ``values``.
        time_label: what time is counted in.
        frame: height and width where the channels are the pixels of a picture.
        notes: what a reader of results must know about the data.
    """

    name: str
    time: Float64[np.ndarray, " n"]
    values: Float64[np.ndarray, "n d"]
    channels: tuple[str, ...]
    time_label: str
    frame: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.time.shape[0]


def read_csv_channels(path: Path, *, time_column: str = "time") -> ChannelSeries:
    """Read a CSV file with a header: a time column, and channels in all others.

    Args:
        path: the file; `.tsv` and `.tab` are separated by tabs.
        time_column: numbers, or ISO 8601 dates and times, which become hours since the first; in
            any order.

    Raises:
        DataError: the file or the time column is missing, there is no channel, a name comes twice,
            or a cell is empty or no number; the message names line and column.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file")
    delimiter = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    rows = csv_rows(path, delimiter=delimiter)
    header = next(rows, (1, list[str]()))[1]
    _check_header(path, header, time_column)
    place = header.index(time_column)
    names = [name for name in header if name != time_column]
    times: list[float] = []
    values: list[list[float]] = []
    kinds: set[bool] = set()
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: expected {len(header)} columns, got {len(row)}")
        try:
            stamp, calendar = parse_stamp(row[place])
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
        kinds.add(calendar)
        if len(kinds) > 1:
            raise DataError(
                f"{path}, line {line}: column {time_column!r} must hold numbers or dates, "
                f"got both: {row[place]!r}"
            )
        times.append(stamp)
        cells = [cell for index, cell in enumerate(row) if index != place]
        values.append(_numbers(f"{path}, line {line}", names, cells))
    if not times:
        raise DataError(f"{path} holds a header and no rows")
    time, table = np.array(times), np.array(values)
    notes: tuple[str, ...] = ()
    if (np.diff(time) < 0.0).any():
        order = np.argsort(time, kind="stable")
        time, table, notes = time[order], table[order], ("rows are sorted by time",)
    label = time_column
    if kinds == {True}:
        time, label = (time - time[0]) / _SECONDS_AN_HOUR, "hours since the first stamp"
    return ChannelSeries(f"{CSV_PREFIX}{path}", time, table, tuple(names), label, notes=notes)


def _check_header(path: Path, header: Sequence[str], time_column: str) -> None:
    if header.count(time_column) != 1:
        raise DataError(
            f"{path} needs one column {time_column!r} for the time in its header, "
            f"which has {list(header)}"
        )
    if len(header) < 2:
        raise DataError(f"{path} needs at least one channel beside {time_column!r}")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{path} has several columns named {twice[0]!r}")


def _numbers(where: str, names: Sequence[str], cells: Sequence[str]) -> list[float]:
    found: list[float] = []
    for name, cell in zip(names, cells, strict=True):
        if not cell.strip():
            raise DataError(
                f"{where}: channel {name!r} is empty, and every channel needs a value at every "
                "time: fill the gap, or leave the row out"
            )
        try:
            found.append(parse_number(cell))
        except ValueError as error:
            raise DataError(f"{where}: channel {name!r}: {error}") from error
    return found
