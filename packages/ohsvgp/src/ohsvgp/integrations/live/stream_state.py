"""Progress of a live stream."""

from dataclasses import dataclass, field

from ohsvgp.stream.spacing import StampSpacing
from ohsvgp.stream.stamps import stamp_text


@dataclass
class StreamState(StampSpacing):
    """Progress of a stream; stamps of dates are in seconds since 1970.

    A line's changes are made in a copy, whose lists are replaced and never changed.
    """

    lines: int = 0  # lines of input that were read, those passed over too
    calendar: bool | None = None  # whether stamps are dates; None before it is known
    form: str | None = None  # of all stamps: "date", "date with zone" ...
    zone: str | None = None  # of the latest stamp, as ``Stamp`` has it
    # Stamps and values of the first lines, until they are learned
    first_lines: list[list[float]] = field(default_factory=list[list[float]])
    unit: float | None = None  # a step of the model, in stamps; None before it begins
    time: float = 0.0  # of the model, in steps
    # Latest lines: times in steps, values, and ``SeriesRow``'s kinds
    rows: list[list[float | int]] = field(default_factory=list[list[float | int]])
    learned: int = 0  # values so far
    digits: int = 0  # of values, after the decimal mark
    resolution: float | None = None  # the smallest difference of values, or of differences
    width: float = 0.0  # common divisor of the differences of values, 0 for none yet
    periods: list[float] = field(default_factory=list[float])  # of seasons, in steps
    nats: float = 0.0  # evidence of the seasons over none
    check_at: int = 0  # values at which seasons are compared again
    waiting: list[float | None] | None = None  # stamp and value of a line too far ahead
    late: list[float] = field(default_factory=list[float])  # stamps of late lines in a row
    # horizon, lines until then, stamp, low and high end of intervals whose values have not come
    pending: list[list[float]] = field(default_factory=list[list[float]])
    # Of the interval of each horizon, in units of the model's
    reach: list[float] = field(default_factory=list[float])
    answer: str = ""  # the last one that was given

    @property
    def floor(self) -> float:
        """Least variance of values: that of rounding them to their resolution.

        Where all values are equal, it is that of their digits, as they were written.
        """
        width = self.resolution
        if width is None:
            value = abs(self.rows[-1][1]) if self.rows else 0.0
            width = max(10.0**-self.digits, 1e-12 * value)
        return max(width * width / 12.0, 1e-100)


def as_json(stamp: float, form: str | None, zone: str | None = None) -> float | str:
    """Return a stamp as JSON can hold it, dates in a form and a zone as ``Stamp`` names them."""
    return stamp if form in (None, "number") else stamp_text(stamp, zone, form)
