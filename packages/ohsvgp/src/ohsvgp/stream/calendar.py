"""Stamps ahead that follow the calendar as those before do."""

from calendar import monthrange
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from statistics import median_low

from ohsvgp.stream.stamps import time_zone

# Seconds between the same time of two days, at least: clocks go forward.
_FRIDAY, _SHORTEST = 4, 20 * 3_600.0


def calendar_ahead(
    last: float, gaps: Sequence[float], count: int, zone: str | None = None
) -> list[float] | None:
    """Return stamps that go on in months or business days; None where those before do not.

    Months, and so quarters and years: the same day, or the last of the month if it is shorter, at
    the same time of day. Business days: the same time from Monday to Friday, though some before may
    be missing. In a zone, days too: the same time of its clock, of which an offset alone does not
    tell when it changes.

    The latest stamp and the gaps before it, the latest last, are in seconds since 1970, UTC.
    """
    if len(gaps) < 2 or min(gaps) < _SHORTEST or max(abs(x - round(x)) for x in gaps) > 1e-3:
        return None
    whole = [round(gap) for gap in gaps]
    stamps = [round(last) - back for back in (0, *accumulate(reversed(whole)))][::-1]
    if abs(last - stamps[-1]) > 1e-3:
        return None
    local = time_zone(zone or "Z")
    try:
        dates = [datetime.fromtimestamp(stamp, local).replace(tzinfo=None) for stamp in stamps]
        if zone is not None and zone[0] in "+-":
            dates = [_in_summer_or_winter(stamp, dates[-1]) for stamp in dates]
        if len({stamp.time() for stamp in dates}) > 1:
            return None
        ahead = _months(dates, count) or _business_days(dates, count)
        if ahead is None and zone is not None:
            days = median_low((later - earlier).days for earlier, later in pairwise(dates))
            ahead = [dates[-1] + timedelta(days=days * k) for k in range(1, count + 1)]
        return None if ahead is None else [x.replace(tzinfo=local).timestamp() for x in ahead]
    except (OverflowError, OSError, ValueError):  # beyond the years that Python knows
        return None


def _in_summer_or_winter(stamp: datetime, latest: datetime) -> datetime:
    """Return a stamp an hour earlier or later if it then has the latest one's time of day."""
    seconds = (latest - stamp).total_seconds() % 86_400
    return stamp + timedelta(hours={3_600: 1, 82_800: -1}.get(int(seconds), 0))


def _months(dates: Sequence[datetime], count: int) -> list[datetime] | None:
    day = max(stamp.day for stamp in dates)
    months = [12 * stamp.year + stamp.month - 1 for stamp in dates]
    if len(set(months)) < len(months) or any(_in_month(stamp, 0, day) != stamp for stamp in dates):
        return None
    step = median_low(later - earlier for earlier, later in pairwise(months))
    return [_in_month(dates[-1], step * (k + 1), day) for k in range(count)]


def _in_month(stamp: datetime, later: int, day: int) -> datetime:
    """Return the day, or the month's last one, some months later."""
    year, month = divmod(12 * stamp.year + stamp.month - 1 + later, 12)
    return stamp.replace(year=year, month=month + 1, day=min(day, monthrange(year, month + 1)[1]))


def _business_days(dates: Sequence[datetime], count: int) -> list[datetime] | None:
    if any(stamp.weekday() > _FRIDAY for stamp in dates):
        return None
    # Business days since the year 1, which began on a Monday, and a Friday with its Monday.
    numbers = [5 * ((day.toordinal() - 1) // 7) + day.weekday() for day in dates]
    steps = [later - earlier for earlier, later in pairwise(numbers)]
    weekend = any(b - a == 1 and b % 5 == 0 for a, b in pairwise(numbers))
    if not weekend or 2 * steps.count(1) <= len(steps):
        return None
    ahead, now = list[datetime](), dates[-1]
    for _ in range(count):
        now += timedelta(days=3 if now.weekday() == _FRIDAY else 1)
        ahead.append(now)
    return ahead
