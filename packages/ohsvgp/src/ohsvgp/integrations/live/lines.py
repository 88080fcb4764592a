"""Stamps and values from lines of text."""

from dataclasses import dataclass
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
    """Reads lines ``t,y``."""

    separator: str = ","
    decimal: str = "."

    def __post_init__(self) -> None:
        check_marks(self.separator, self.decimal)

    def read(self, text: str) -> Line:
        """Read a line that is not empty."""
        cells = [cell.strip() for cell in text.split(self.separator)]
        marks = ";\t|" if len(cells) == 2 else ";\t|,"
        others = [mark for mark in marks if mark in text and mark != self.separator]
        if len(cells) != 2 or others:
            hint = f": --separator {others[0]!r} separates its cells" if others else ""
            raise ValueError(f"a line must be t{self.separator}y, got {text!r}{hint}")
        stamp = self._stamp(cells[0])
        time = stamp.value / _NANOSECONDS if stamp.calendar else stamp.value
        value = None if cells[1].lower() in _MISSING else self._number(cells[1])
        if value is not None and abs(value) > _LARGEST:
            raise ValueError(f"y must lie within ±{_LARGEST:g}, got {cells[1]!r}")
        return Line(cells[0], time, stamp, value)

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

    def _stamp(self, cell: str) -> Stamp:
        if self.decimal == "," and cell.count(",") == 1 and "-" not in cell[1:]:
            return Stamp(self._number(cell), "number")
        return parse_stamp(cell)
