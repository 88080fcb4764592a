"""Columns of a table as series: stamps read cell by cell, rows in order, numbers that suit."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ohsvgp.stream.stamps import Stamp, parse_stamp

_SECONDS = {"hours": 3_600.0, "days": 86_400.0}


class StampColumn:
    """The time stamps of a column, cell by cell: numbers, or ISO 8601 dates and times."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._first: tuple[str, Stamp] | None = None

    def parse(self, cell: str) -> float:
        """Return a stamp, in seconds since 1970 for a date; a time without a zone is UTC.

        Each must have the form of the first: no date after numbers, no month after dates, none that
        names its zone after one that does not.
        """
        stamp = parse_stamp(cell)
        self._first = first, first_stamp = self._first or (cell, stamp)
        if first_stamp.form != stamp.form:
            raise ValueError(
                f"column {self.name!r} must hold stamps of one form, got {first!r}, a "
                f"{first_stamp.form}, and {cell!r}, a {stamp.form}"
            )
        return stamp.value / 10**9 if stamp.calendar else stamp.value

    def in_order(
        self, times: Sequence[float], values: NDArray[np.float64], unit: Literal["hours", "days"]
    ) -> tuple[NDArray[np.float64], str, NDArray[np.float64], tuple[str, ...]]:
        """Sort rows (n, ...) by their times (n,); dates are counted from the first one.

        Return times, what they are counted in, rows, and a note if they were sorted.
        """
        time, notes = np.array(times), ()
        if (np.diff(time) < 0.0).any():
            order = np.argsort(time, kind="stable")
            time, values, notes = time[order], values[order], ("rows are sorted by time",)
        if self._first is None or not self._first[1].calendar:
            return time, self.name, values, notes
        return (time - time[0]) / _SECONDS[unit], f"{unit} since the first stamp", values, notes


def check_squares(numbers: NDArray[np.float64], name: str) -> None:
    """Refuse numbers whose squares, which all methods take, overflow or vanish."""
    with np.errstate(over="ignore", under="ignore"):
        total, std = float(np.square(numbers).sum()), float(numbers.std())
    size, spread = float(np.abs(numbers).max()), numbers.max() - numbers.min()
    if not (math.isfinite(total) and math.isfinite(std)):
        raise ValueError(
            f"{name} holds numbers up to {size:g} in size, whose squares overflow: give them in a "
            "larger unit"
        )
    if std == 0.0 and spread > 0.0:
        raise ValueError(
            f"{name} holds numbers that differ by {spread:g} at most, whose square vanishes: give "
            "them in a smaller unit"
        )
