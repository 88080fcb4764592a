"""Time stamps of users, as times since the start of a stream."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import torch
from torch import Tensor

from ohsvgp.stream.arrays import as_array, real_numbers

# What int64 nanoseconds reach on both sides of 1970.
_LAST_YEAR = 292
_LAST_SECOND = np.iinfo(np.int64).max // 10**9 - 1
_LAST_NANOSECOND = np.iinfo(np.int64).max
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# ISO 8601 dates that Python does not read: months, and weeks, which begin on Monday.
_MONTH, _WEEK = re.compile(r"\d{4}-\d\d"), re.compile(r"\d{4}-?W\d\d")
# Quarters, as pandas and statsmodels write them, and the first moment of each.
_QUARTER = re.compile(r"(\d{4})(-?Q)([1-4])", re.IGNORECASE)
_QUARTERS = [f"-{month}-01T00:00:00" for month in ("01", "04", "07", "10")]
# A date and, after T or a space, a time and a zone. Times without a colon follow T only: in
# "2024-01-01 18,9" 18.9 is a number.
_MOMENT = re.compile(
    r"([\dQW-]+)(?:(?:T| (?=\d+:))([\d:.,]+) ?(Z|UTC|GMT|[+-][\d:.]+)?)?", re.IGNORECASE
)
# Hours, minutes and seconds; a fraction is one of the last of them.
_TIME = re.compile(r"(\d\d)(?:(:?)([0-5]\d)(?:\2([0-5]\d|60))?)?(?:[.,](\d+))?")
_ZONE = re.compile(r"([+-])([01]\d|2[0-3])(?::?([0-5]\d))?")
_HOUR, _MINUTE, _SECOND = 3_600 * 10**9, 60 * 10**9, 10**9
# Days, and months of these centuries, without marks between: numbers where others are none.
_DIGITS = re.compile(r"\d{8}|(?:19|20)\d\d(?:0[1-9]|1[0-2])")


class Stamp(NamedTuple):
    """A time stamp that was read."""

    value: float | int  # the number, or nanoseconds since 1970 in UTC
    form: Literal["number", "month", "week", "quarter Q1", "quarter -Q1", "date", "date with zone"]
    zone: str | None = None  # "Z", or the offset from UTC such as "+02:00"

    @property
    def calendar(self) -> bool:
        """True of a date or time."""
        return self.form != "number"

    @property
    def time(self) -> float:
        """The number, or seconds since 1970."""
        return self.value / _SECOND if self.calendar else self.value


@dataclass(frozen=True)
class Clock:
    """Origin and unit of time."""

    origin: float | int  # t0, a float, or integer nanoseconds since 1970 for calendar stamps
    # Nanoseconds in a unit of time for calendar stamps; None for plain numbers
    unit: int | None = None
    # Name of the time zone whose days and months the stamps follow, or its offset; None for UTC
    zone: str | None = None

    def internal(self, t: Any, *, name: str = "t") -> Tensor:
        """Return times since t0 in float64, shape (n,)."""
        values, calendar = stamps(t, name=name, digits=self.unit is not None)
        if values.size and calendar != (self.unit is not None):
            kinds = ("calendar stamps", "numbers")
            raise ValueError(
                f"{name} must hold {kinds[calendar]} like the stamps before, "
                f"got {kinds[not calendar]}"
            )
        # Copied: numpy's memory starts anywhere, and products round in other ways from elsewhere.
        if self.unit is None:
            with np.errstate(over="ignore"):
                times = values - self.origin
            if not np.isfinite(times).all():
                raise ValueError(
                    f"{name} must lie at a finite distance from t0={self.origin}, "
                    f"got {values[_first(~np.isfinite(times))]}"
                )
            return torch.tensor(times)
        later = values >= self.origin
        # |t − t0| reaches 2^64: int64 wraps around, and its bits are the difference as uint64.
        distance = np.where(later, values - self.origin, self.origin - values).view(np.uint64)
        # Whole units are exact; ns / unit would round twice.
        whole, remainder = np.divmod(distance, np.uint64(self.unit))
        return torch.tensor(np.where(later, 1.0, -1.0) * (whole + remainder / self.unit))

    def user_array(self, lengths: Tensor) -> np.ndarray:
        """Return the stamps that lie after t0, of one type: see ``user``."""
        stamps = [self.user(length) for length in lengths.tolist()]
        # numpy would take nanoseconds for all, and wrap those beyond them around.
        types = {getattr(stamp, "dtype", None) for stamp in stamps}
        if len(types) > 1:
            return np.array([np.array(stamp).astype("datetime64[s]") for stamp in stamps])
        return np.array(stamps)

    def user(self, length: float) -> float | np.datetime64:
        """Return the stamp that lies ``length`` after t0.

        Calendar stamps are in nanoseconds, or in seconds beyond what these reach.
        """
        if self.unit is None:
            return self.origin + length
        stamp = self.nanoseconds(length)
        if abs(stamp) > _LAST_NANOSECOND:
            return np.datetime64(stamp // _SECOND, "s")
        return np.datetime64(stamp, "ns")

    def nanoseconds(self, length: float) -> int:
        """Return the calendar stamp that lies ``length`` after t0, since 1970.

        The whole second, milli- or microsecond that float64 cannot tell it from, if there is one.
        """
        assert self.unit is not None
        # In Python's integers: as float64 the origin alone would lose hundreds of nanoseconds.
        whole = math.floor(length)
        stamp = int(self.origin) + whole * self.unit + round((length - whole) * self.unit)
        return stamp if length == whole else _nearby_whole(stamp, math.ulp(length) * self.unit)

    def lengths_ahead(self, last: float, gaps: list[float], step: float, count: int) -> list[float]:
        """Return ``count`` times since t0 after the latest, in steps that float64 does not add up.

        The step is one of the gaps before the latest stamp, whose whole units stay whole, too.
        """
        if self.unit is None:
            return [last + step * k for k in range(1, count + 1)]
        error = math.ulp(last if step in gaps else step) * self.unit
        stamp, gap = self.nanoseconds(last), _nearby_whole(round(step * self.unit), error)
        ahead = (stamp + gap * k - int(self.origin) for k in range(1, count + 1))
        return [length // self.unit + length % self.unit / self.unit for length in ahead]


def _nearby_whole(stamp: int, error: float) -> int:
    for unit in (_SECOND, 10**6, 10**3):
        nearest = (stamp + unit // 2) // unit * unit
        if abs(nearest - stamp) <= error:
            return nearest
    return stamp


def start_clock(t: Any, time_unit: str, *, sort: bool = False) -> Clock:
    """Return a clock whose t0 is the first of the stamps.

    The unit is numpy's code ("s", "h", "D", "W") of what calendar stamps count in; ``sort`` takes
    the earliest stamp instead of the first.
    """
    values, calendar = stamps(t, name="t")
    if values.size == 0:
        raise ValueError("t must hold at least one stamp where time starts, or give t0")
    first = values.min() if sort else values[0]
    if not calendar:
        return Clock(float(first))
    return Clock(int(first), nanoseconds(time_unit), _zone_name(t))


def _zone_name(t: Any) -> str | None:
    """Return the zone of the first of calendar stamps, by its name or else its offset from UTC."""
    array = np.atleast_1d(as_array(t, "t"))
    if array.dtype.kind == "M":
        return None
    first = array[0]
    if not isinstance(first, datetime):
        return parse_stamp(str(first)).zone
    name = getattr(first.tzinfo, "key", None) or getattr(first.tzinfo, "zone", None)
    return name or parse_stamp(str(first)).zone


@cache
def time_zone(name: str) -> tzinfo:
    """Return the zone of a name, or of an offset such as "+02:00"."""
    if name[0] in "Z+-":
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo or UTC
    return ZoneInfo(name)


def stamp_text(seconds: float, zone: str | None, form: str | None = None) -> str:
    """Return a stamp of seconds since 1970 as ISO 8601, or as a quarter, as ``Stamp`` has it."""
    moment = _EPOCH + timedelta(microseconds=round(seconds * 10**6))
    local = moment.astimezone(time_zone(zone or "Z")).replace(tzinfo=None)
    year, later = (text := local.isoformat())[:4], text[4:]
    if form in ("quarter Q1", "quarter -Q1") and later in _QUARTERS:
        return f"{year}{form[8:-1]}{_QUARTERS.index(later) + 1}"
    return f"{text}{zone or ''}"


def nanoseconds(time_unit: str) -> int:
    """Return the length of a unit of time, by numpy's code of it."""
    try:
        length = int(np.timedelta64(1, time_unit) / np.timedelta64(1, "ns"))
    except TypeError as error:
        raise ValueError(
            f'time_unit must be a numpy code like "s", "m", "h", "D" or "W", got {time_unit!r}'
        ) from error
    if length < 1:
        raise ValueError(f"time_unit must be a nanosecond or longer, got {time_unit!r}")
    return length


def stamps(t: Any, *, name: str, digits: bool = True) -> tuple[np.ndarray, bool]:
    """Return stamps as float64, or calendar stamps as integer nanoseconds, and which it is.

    Stamps are of shape (n,) or single, numbers or numpy's, pandas' or Python's dates, or ISO 8601
    strings; see ``parse_stamp``. With ``digits`` whole numbers that are all days or months of the
    20th and 21st century, such as 20240105 or 202401, are dates. The name is the argument's, for
    errors.
    """
    array = np.atleast_1d(as_array(t, name))
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have shape (n,), got {array.shape}: all series share their time stamps"
        )
    if array.dtype.kind == "M":
        return _calendar_nanoseconds(array, name), True
    if array.dtype.kind in "OUT" and any(isinstance(value, date | str) for value in array):
        return _parse_stamps(array.tolist(), name)
    if digits and array.dtype.kind in "iu" and array.size:
        # Within one of the two lengths first: most numbers need not be read as text.
        low, high = int(array.min()), int(array.max())
        if (low >= 190_001 and high <= 209_912) or (low >= 19_000_101 and high <= 20_991_231):
            return _parse_stamps(array.astype(str).tolist(), name)
    values = real_numbers(array, name, "hold numbers or calendar stamps")
    if not np.isfinite(values).all():
        where = _first(~np.isfinite(values))
        raise ValueError(f"{name} must be finite, got {values[where]} at position {where}")
    return values, False


def parse_stamp(text: str) -> Stamp:
    """Read a number, or an ISO 8601 date or time as nanoseconds since 1970.

    A time without a zone is taken as UTC; one with a zone, "UTC" too, is converted to UTC. Months,
    weeks and quarters stand for their first day. Eight digits that are a date are one, six that are
    a month of the 20th or 21st century. A fraction is one of the last unit that is there; 24:00 is
    the next day's midnight, and a leap second (:60) the second that follows.

    Such as "3.5", "2021-02-28", "2021-02", "2021-W08", "2021Q1", "2021-Q1", "20210228" or
    "2021-02-28 12:30:00.25+01:00".
    """
    text = text.strip()
    digits = bool(_DIGITS.fullmatch(text))
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is None or digits:
        try:
            return _moment(text)
        except ValueError:
            if number is None:
                raise ValueError(
                    "a time stamp must be a number or an ISO date such as 2021-02-28, or "
                    f"2021-02-28T12:30, got {text!r}"
                ) from None
    if not math.isfinite(number):
        raise ValueError(f"a time stamp must be finite, got {text!r}")
    return Stamp(number, "number")


def _moment(text: str) -> Stamp:
    """Read a date or time, or raise a ``ValueError``."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, time, zone = match.groups()
    form = "date" if zone is None else "date with zone"  # the time of midnight may be left out
    if time is None and len(day) == 6 and _DIGITS.fullmatch(day):
        day = f"{day[:4]}-{day[4:]}"
    if time is None and _MONTH.fullmatch(day):
        form, day = "month", f"{day}-01"
    elif time is None and _WEEK.fullmatch(day):
        form, day = "week", f"{day}-1" if "-" in day else f"{day}1"
    elif time is None and (quarter := _QUARTER.fullmatch(day)):
        form = "quarter -Q1" if "-" in day else "quarter Q1"
        day = f"{quarter[1]}{_QUARTERS[int(quarter[3]) - 1][:6]}"
    midnight = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    value = (midnight - _EPOCH).days * 24 * _HOUR + (0 if time is None else _since_midnight(time))
    if zone is None or zone[0].isalpha():
        return Stamp(value, form, None if zone is None else "Z")
    offset = _ZONE.fullmatch(zone)
    if offset is None:
        raise ValueError(text)
    sign, hours, minutes = offset[1], offset[2], offset[3] or "00"
    east = int(f"{sign}1") * (int(hours) * _HOUR + int(minutes) * _MINUTE)
    return Stamp(value - east, form, f"{sign}{hours}:{minutes}")


def _since_midnight(time: str) -> int:
    """Return the nanoseconds of a time of day."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise ValueError(time)
    hours, _, minutes, seconds, fraction = match.groups()
    last = _SECOND if seconds else _MINUTE if minutes else _HOUR
    value = int(hours) * _HOUR + int(minutes or 0) * _MINUTE + int(seconds or 0) * _SECOND
    value += int(fraction or 0) * last // 10 ** len(fraction or "")
    if value > 24 * _HOUR + (seconds == "60") * _SECOND or (int(hours) == 24 and value % _HOUR):
        raise ValueError(time)
    return value


def _parse_stamps(stamps: list[Any], name: str) -> tuple[np.ndarray, bool]:
    """Read strings, dates and times (pandas' too) by their text."""
    read: list[Stamp] = []
    for where, stamp in enumerate(stamps):
        if isinstance(stamp, date) and str(stamp) == "NaT":
            raise ValueError(f"{name} must hold dates, got NaT at position {where}")
        try:
            parsed = parse_stamp(str(stamp))
        except ValueError:
            raise ValueError(
                f"{name} must hold finite numbers or ISO dates such as 2021-02-28, "
                f"got {str(stamp)!r} at position {where}"
            ) from None
        if parsed.calendar and abs(parsed.value) > _LAST_SECOND * 10**9:
            raise _out_of_reach(stamp, name)
        read.append(parsed)
    calendar = any(stamp.calendar for stamp in read)
    if calendar and not all(stamp.calendar for stamp in read):
        # Eight digits of which some are no date are numbers, all of them.
        if all(
            _DIGITS.fullmatch(str(stamp)) or not read[i].calendar for i, stamp in enumerate(stamps)
        ):
            return np.array([float(stamp) for stamp in stamps]), False
        raise ValueError(f"{name} must hold numbers or calendar stamps, got both")
    for where, (first, stamp) in enumerate(zip(read[:1] * len(read), read, strict=True)):
        if (first.form == "date with zone") != (stamp.form == "date with zone"):
            raise ValueError(
                f"{name} must hold stamps that all name their time zone, or none, got "
                f"{str(stamps[0])!r} at position 0 and {str(stamps[where])!r} at position {where}"
            )
    values = [stamp.value for stamp in read]
    return np.array(values, dtype=np.int64 if calendar else np.float64), calendar


def _calendar_nanoseconds(array: np.ndarray, name: str) -> np.ndarray:
    missing = np.isnat(array)
    if missing.any():
        raise ValueError(f"{name} must hold dates, got NaT at position {_first(missing)}")
    # Years first: stamps beyond all reach overflow in seconds.
    beyond = np.abs(array.astype("datetime64[Y]").astype(np.int64)) > _LAST_YEAR
    beyond |= np.abs(array.astype("datetime64[s]").astype(np.int64)) > _LAST_SECOND
    if beyond.any():
        raise _out_of_reach(array[_first(beyond)], name)
    return array.astype("datetime64[ns]").astype(np.int64)


def _out_of_reach(stamp: Any, name: str) -> ValueError:
    return ValueError(
        f"{name} must lie between the years 1678 and 2262, got {stamp}: "
        "give numbers for what lies further away"
    )


def sorted_times(clock: Clock, t: Any, *, sort: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return stamps as times since t0 in float64, and their order if they are to be sorted."""
    times = clock.internal(t)
    order = torch.argsort(times, stable=True) if sort else None
    times = times if order is None else times[order]
    if len(times) > 1 and bool((back := times[1:] < times[:-1]).any()):
        where = int(back.nonzero()[0, 0]) + 1
        raise ValueError(
            f"t must be sorted, got a stamp before its predecessor at position {where}: "
            "pass sort=True"
        )
    if times.numel() and float(times[0]) < 0:
        raise ValueError(
            f"t must not lie before t0={clock.user(0.0)}, got {clock.user(float(times[0]))}: "
            "give the earliest possible stamp as t0 when the model is made"
        )
    return times, order


def _first(flags: np.ndarray) -> int:
    return int(flags.argmax())
