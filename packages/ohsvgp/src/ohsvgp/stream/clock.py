"""Time stamps of users, as times since the start of a stream."""

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohsvgp.stream.arrays import as_array, real_numbers
from ohsvgp.stream.stamps import DIGITS, SECOND, Stamp, parse_stamp

# What int64 nanoseconds reach on both sides of 1970.
_LAST_YEAR = 292
_LAST_SECOND = np.iinfo(np.int64).max // 10**9 - 1
_LAST_NANOSECOND = np.iinfo(np.int64).max


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
            return np.datetime64(stamp // SECOND, "s")
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
    for unit in (SECOND, 10**6, 10**3):
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
    zone = getattr(array[0], "tzinfo", None)
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    return name or parse_stamp(str(array[0])).zone


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
            DIGITS.fullmatch(str(stamp)) or not read[i].calendar for i, stamp in enumerate(stamps)
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
