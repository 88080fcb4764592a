"""Stamps ahead that follow the calendar as those before do."""

from calendar import monthrange
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from statistics import median_low

_DAY = 86_400
_FRIDAY = 4
# Days between two business days, by the week's day of the first.
_WORKING = (1, 1, 1, 1, 3)


def calendar_ahead(last: float, gaps: Sequence[float], count: int) -> list[float] | None:
    """Return stamps that go on in months or business days; None where those before do not.

    Months, and so quarters and years: the same day, or the last of the month if it is shorter, at
    the same time of day. Business days: the same time from Monday to Friday.

    The latest stamp and the gaps before it, the latest last, are in seconds since 1970, UTC.
    """
    whole = [round(gap) for gap in gaps]
    if len(gaps) < 2 or any(abs(gap - near) > 1e-3 for gap, near in zip(gaps, whole, strict=True)):
        return None
    stamps = [round(last) - back for back in (0, *accumulate(reversed(whole)))][::-1]
    if abs(last - stamps[-1]) > 1e-3 or len({stamp % _DAY for stamp in stamps}) > 1:
        return None
    try:
        dates = [datetime.fromtimestamp(stamp, UTC) for stamp in stamps]
        ahead = _months(dates, count) or _business_days(dates, count)
    except (OverflowError, OSError, ValueError):  # beyond the years that Python knows
        return None
    return None if ahead is None else [stamp.timestamp() for stamp in ahead]


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
    steps = [(earlier.weekday(), (later - earlier).days) for earlier, later in pairwise(dates)]
    weekend = any(step == (_FRIDAY, _WORKING[_FRIDAY]) for step in steps)
    if not weekend or any(day > _FRIDAY or days != _WORKING[day] for day, days in steps):
        return None
    ahead, now = list[datetime](), dates[-1]
    for _ in range(count):
        now += timedelta(days=_WORKING[now.weekday()])
        ahead.append(now)
    return ahead
