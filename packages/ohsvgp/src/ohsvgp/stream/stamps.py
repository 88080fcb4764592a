"""Time stamps as text: numbers, and dates of ISO 8601."""

import math
import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# ISO 8601 dates that Python does not read: months, and weeks, which begin on Monday.
_MONTH, _WEEK = re.compile(r"\d{4}-\d\d"), re.compile(r"\d{4}-?W\d\d")
# Quarters, as pandas and statsmodels write them, and the first moment of each.
_QUARTER = re.compile(r"(\d{4})(-?Q)([1-4])", re.IGNORECASE)
_QUARTER_WORDS = re.compile(r"(?:(\d{4})[ /])?(Q[1-4])(?:[ /-](\d{4}))?", re.IGNORECASE)
_QUARTERS = [f"-{month}-01T00:00:00" for month in ("01", "04", "07", "10")]
# A date and, after T or a space, a time and a zone. Times without a colon follow T only: in
# "2024-01-01 18,9" 18.9 is a number.
_MOMENT = re.compile(
    r"([\dQW-]+)(?:(?:T| (?=\d+:))([\d:.,]+) ?(Z|UTC|GMT|[+-][\d:.]+)?)?", re.IGNORECASE
)
# Hours, minutes and seconds; a fraction is one of the last of them.
_TIME = re.compile(r"(\d\d)(?:(:?)([0-5]\d)(?:\2([0-5]\d|60))?)?(?:[.,](\d+))?")
_ZONE = re.compile(r"([+-])([01]\d|2[0-3])(?::?([0-5]\d))?")
_HOUR, _MINUTE, SECOND = 3_600 * 10**9, 60 * 10**9, 10**9
# Days, and months of these centuries, without marks between: numbers where others are none.
DIGITS = re.compile(r"\d{8}|(?:19|20)\d\d(?:0[1-9]|1[0-2])")


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
        return self.value / SECOND if self.calendar else self.value


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


def parse_stamp(text: str) -> Stamp:
    """Read a number, or an ISO 8601 date or time as nanoseconds since 1970.

    A time without a zone is taken as UTC; one with a zone, "UTC" too, is converted to UTC. Months,
    weeks and quarters stand for their first day. Eight digits that are a date are one, six that are
    a month of the 20th or 21st century. A fraction is one of the last unit that is there; 24:00 is
    the next day's midnight, and a leap second (:60) the second that follows.

    Such as "3.5", "2021-02-28", "2021-02", "2021-W08", "2021Q1", "2021-Q1", "Q1 2021", "20210228"
    or "2021-02-28 12:30:00.25+01:00".
    """
    text = text.strip()
    digits = bool(DIGITS.fullmatch(text))
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
    text = _QUARTER_WORDS.sub(r"\1\3\2", text) if "Q" in text.upper() else text
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, time, zone = match.groups()
    form = "date" if zone is None else "date with zone"  # the time of midnight may be left out
    if time is None and len(day) == 6 and DIGITS.fullmatch(day):
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
    last = SECOND if seconds else _MINUTE if minutes else _HOUR
    value = int(hours) * _HOUR + int(minutes or 0) * _MINUTE + int(seconds or 0) * SECOND
    value += int(fraction or 0) * last // 10 ** len(fraction or "")
    if value > 24 * _HOUR + (seconds == "60") * SECOND or (int(hours) == 24 and value % _HOUR):
        raise ValueError(time)
    return value
