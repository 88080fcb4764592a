"""How far a live stream has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ohsvgp.information_loss import Losses
from ohsvgp.stream.spacing import StampSpacing

NANOSECONDS = 1_000_000_000
# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // NANOSECONDS


@dataclass
class Position(StampSpacing):
    """How far a stream has come; stamps of dates are in seconds since 1970.

    Attributes:
        lines: lines of input that were read, those passed over too.
        calendar: whether stamps are dates; None before it is known.
        zoned: whether they name their time zone.
        start: t0.
        first_lines: stamps and values of the first lines, until they are learned.
        centre: subtracted from values before they are learned.
        scale: what they are divided by then.
        losses: of the updates so far, as ``Losses``.
        recent: latest stamps, values and errors.
        fitted: lines that the latest fit saw.
        since: lines since then.
        pending: horizon, stamp, low and high end of intervals whose values have not come.
        reach: of the interval of each horizon, in units of the model's.
        answer: the last one that was given.
    """

    lines: int = 0
    calendar: bool | None = None
    zoned: bool | None = None
    start: float | None = None
    first_lines: list[list[float]] = field(default_factory=list[list[float]])
    centre: float = 0.0
    scale: float = 1.0
    losses: list[Any] = field(default_factory=lambda: list[Any](Losses()))
    recent: list[list[float]] = field(default_factory=list[list[float]])
    fitted: int = 0
    since: int = 0
    pending: list[list[float]] = field(default_factory=list[list[float]])
    reach: list[float] = field(default_factory=list[float])
    answer: str = ""

    def observe(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        super().observe(stamp)
        self.start = stamp if self.start is None else self.start


def as_times(stamps: Sequence[float], calendar: bool) -> np.ndarray:
    """Return stamps as the model takes them.

    Args:
        stamps: numbers, or seconds since 1970.
        calendar: whether they are dates.

    Raises:
        ValueError: dates that int64 nanoseconds don't reach.
    """
    if not calendar:
        return np.array(stamps)
    if any(abs(stamp) > _LAST_SECOND for stamp in stamps):
        raise ValueError("dates must lie between the years 1678 and 2261")
    return np.array([round(stamp * NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def as_json(stamp: float, calendar: bool) -> float | str:
    """Return a stamp as JSON can hold it."""
    if not calendar:
        return stamp
    return str(np.datetime_as_string(np.datetime64(round(stamp), "s")))
