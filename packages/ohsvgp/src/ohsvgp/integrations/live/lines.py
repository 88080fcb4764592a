"""Stamps and values from lines of text."""

import csv
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from ohsvgp.integrations.live.state import check_marks
from ohsvgp.stream.stamps import Stamp, parse_stamp
from probseq.checks import parse_number

# The squares of larger values, and scores made of them, are no numbers any more; of a second.
_LARGEST, _NANOSECONDS = 1e100, 1_000_000_000
# Seconds in the numbers of dates that count from 1970.
UNITS = {"unix": 1.0, "unix-ms": 1e-3, "unix-us": 1e-6, "unix-ns": 1e-9}
_LAST_MIDNIGHT = re.compile(r"(?<![\d:.])24(?=:00(:00)?$)")  # 24:00 is the next day's 0:00
_MISSING = ("", "na", "nan", "null", "none", "n/a", "#n/a", "-")


class Line(NamedTuple):
    """Content of a line."""

    text: str  # of the stamp
    time: float  # a number, or seconds since 1970
    stamp: Stamp
    value: float | None  # None where it is missing
    digits: int  # after the decimal mark


@dataclass(frozen=True)
class LineReader:
    """Reads stamp and value of a line."""

    separator: str = ","
    decimal: str = "."
    missing: tuple[str, ...] = ()  # values that stand for none, such as -9999
    # Of stamps, as Python's ``strptime`` has it; "number", or one of ``UNITS`` since 1970; None for
    # numbers and ISO 8601
    date_format: str | None = None

    def __post_init__(self) -> None:
        check_marks(self.separator, self.decimal)

    def read(self, text: str) -> Line:
        """Read a line that is not empty."""
        cells = split_cells(text, self.separator)
        if len(cells) != 2:
            raise ValueError(f"a line must have stamp and value, got {text!r}")
        stamp = self.stamp(cells[0])
        digits = re.search(rf"{re.escape(self.decimal)}(\d+)$", cells[1])
        count = len(digits[1]) if digits else 0
        return Line(cells[0], stamp.time, stamp, self.value(cells[1]), count)

    def value(self, cell: str) -> float | None:
        """Read a number; None of one that is missing."""
        if cell.lower() in _MISSING or cell in self.missing:
            return None
        value = self._number(cell)
        if abs(value) > _LARGEST:
            raise ValueError(f"y must lie within ±{_LARGEST:g}, got {cell!r}")
        for code in self.missing:
            with suppress(ValueError):
                if float(code) == value:
                    return None
        return value

    def stamp(self, cell: str) -> Stamp:
        """Read a number, a date or a time."""
        if self.date_format in UNITS:
            since = self._number(cell) * UNITS[self.date_format]
            return Stamp(round(since * _NANOSECONDS), "date with zone", "Z")
        if self.date_format == "number":
            return Stamp(self._number(cell), "number")
        if self.date_format is not None:
            midnight, days = _LAST_MIDNIGHT.subn("00", cell)
            try:
                stamp = datetime.strptime(midnight, self.date_format) + timedelta(days=days)
                return parse_stamp(stamp.isoformat())
            except ValueError:
                raise ValueError(
                    f"a time stamp must have the form {self.date_format!r}, got {cell!r}"
                ) from None
        if self.decimal == "," and cell.count(",") == 1 and "-" not in cell[1:]:
            return Stamp(self._number(cell), "number")
        return parse_stamp(cell)

    def _number(self, cell: str) -> float:
        if {",": ".", ".": ","}[self.decimal] in cell:
            raise ValueError(f"numbers must have the decimal mark {self.decimal!r}, got {cell!r}")
        return parse_number(cell.replace(",", "."))


def split_cells(text: str, separator: str) -> list[str]:
    """Return the cells of a line of CSV, without spaces around them."""
    cells = text.split(separator)
    with suppress(csv.Error):  # a cell that is longer than any of a table is taken as it stands
        cells = next(csv.reader([text], delimiter=separator)) if '"' in text else cells
    return [cell.strip() for cell in cells]
