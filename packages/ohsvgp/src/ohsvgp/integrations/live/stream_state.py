"""Progress of a live stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ohsvgp.information_loss import InformationLoss
from ohsvgp.stream.clock import stamp_text
from ohsvgp.stream.spacing import StampSpacing

NANOSECONDS = 1_000_000_000
# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // NANOSECONDS


@dataclass
class StreamState(StampSpacing):
    """Progress of a stream; stamps of dates are in seconds since 1970."""

    lines: int = 0  # lines of input that were read, those passed over too
    calendar: bool | None = None  # whether stamps are dates; None before it is known
    form: str | None = None  # of all stamps: "date", "date with zone" ...
    zone: str | None = None  # of the latest stamp, as ``Stamp`` has it
    start: float | None = None  # t0
    # Stamps and values of the first lines, until they are learned
    first_lines: list[list[float]] = field(default_factory=list[list[float]])
    centre: float = 0.0  # subtracted from values before they are learned
    scale: float = 1.0  # what they are divided by then
    # Of the updates so far, as ``InformationLoss``
    losses: list[Any] = field(default_factory=lambda: list[Any](InformationLoss()))
    # Latest stamps, values and errors
    recent: list[list[float]] = field(default_factory=list[list[float]])
    fitted: int = 0  # lines that the latest fit saw
    since: int = 0  # lines since then
    # horizon, stamp, low and high end of intervals whose values have not come
    pending: list[list[float]] = field(default_factory=list[list[float]])
    # Of the interval of each horizon, in units of the model's
    reach: list[float] = field(default_factory=list[float])
    answer: str = ""  # the last one that was given

    def observe(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        super().observe(stamp)
        self.start = stamp if self.start is None else self.start


def as_times(stamps: Sequence[float], calendar: bool) -> np.ndarray:
    """Return stamps as the model takes them."""
    if not calendar:
        return np.array(stamps)
    if any(abs(stamp) > _LAST_SECOND for stamp in stamps):
        raise ValueError("dates must lie between the years 1678 and 2261")
    return np.array([round(stamp * NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def as_json(stamp: float, calendar: bool, zone: str | None = None) -> float | str:
    """Return a stamp as JSON can hold it, dates in a zone as ``Stamp`` names it."""
    return stamp_text(stamp, zone) if calendar else stamp
