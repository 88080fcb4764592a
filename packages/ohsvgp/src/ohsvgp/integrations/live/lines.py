"""Stamps and values from lines of text."""

import csv
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ohsvgp.integrations.live.state import check_marks
from ohsvgp.stream.clock import Stamp, parse_stamp
from probseq.checks import parse_number

_NANOSECONDS = 1_000_000_000
# The squares of larger values, and scores made of them, are no numbers any more.
_LARGEST = 1e100
_MISSING = ("", "na", "nan", "null", "none", "n/a", "#n/a", "-")


class Line(NamedTuple):
    """Content of a line."""

    text: str  # of the stamp
    time: float  # a number, or seconds since 1970
    stamp: Stamp
    value: float | None  # None where it is missing


@dataclass(frozen=True)
class LineReader:
    """Reads stamp and value from lines of cells."""

    separator: str = ","
    decimal: str = "."
    # Numbers of the cells of stamp and value, from 0, and how many there are
    time: int = 0
    target: int = 1
    width: int = 2
    missing: tuple[str, ...] = ()  # values that stand for none, such as -9999
    date_format: str | None = None  # of stamps, as Python's ``strptime`` has it; None for ISO 8601

    def __post_init__(self) -> None:
        check_marks(self.separator, self.decimal)

    def read(self, text: str) -> Line:
        """Read a line that is not empty."""
        cells = split_cells(text, self.separator)
        marks = ";\t|" if len(cells) == self.width else ";\t|,"
        others = [mark for mark in marks if mark in text and mark != self.separator]
        if len(cells) != self.width or (others and self.width == 2):
            hint = f": --separator {others[0]!r} separates its cells" if others else ""
            form = f"t{self.separator}y" if self.width == 2 else f"{self.width} cells"
            raise ValueError(f"a line must be {form}, got {text!r}{hint}")
        stamp = self.stamp(cells[self.time])
        time = stamp.value / _NANOSECONDS if stamp.calendar else stamp.value
        return Line(cells[self.time], time, stamp, self.value(cells[self.target]))

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
        if self.date_format is not None:
            try:
                return parse_stamp(datetime.strptime(cell, self.date_format).isoformat())
            except ValueError:
                raise ValueError(
                    f"a time stamp must have the form {self.date_format!r}, got {cell!r}"
                ) from None
        if self.decimal == "," and cell.count(",") == 1 and "-" not in cell[1:]:
            return Stamp(self._number(cell), "number")
        return parse_stamp(cell)

    def _number(self, cell: str) -> float:
        if self.decimal == ",":
            if "." in cell:
                raise ValueError(f"numbers must have the decimal mark ',', got {cell!r}")
            return parse_number(cell.replace(",", "."))
        try:
            return parse_number(cell)
        except ValueError as error:
            hint = ": --decimal , reads it so" if cell.count(",") == 1 else ""
            raise ValueError(f"{error}{hint}") from None


def split_cells(text: str, separator: str) -> list[str]:
    """Return the cells of a line of CSV, without spaces around them."""
    cells = next(csv.reader([text], delimiter=separator)) if '"' in text else text.split(separator)
    return [cell.strip() for cell in cells]
