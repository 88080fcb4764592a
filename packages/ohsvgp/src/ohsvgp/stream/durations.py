"""Lengths of time with their units, as users write them."""

import re

DAY = 86_400.0
YEAR = 365.2425 * DAY
# "m" could be a minute or a month.
_SECONDS = {
    **{"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0},
    **{"h": 3_600.0, "hour": 3_600.0, "d": DAY, "day": DAY, "w": 7 * DAY, "week": 7 * DAY},
    **{"month": YEAR / 12, "quarter": YEAR / 4, "y": YEAR, "year": YEAR},
}
_UNITS = ((DAY, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_TEXT = re.compile(r"(\d*\.?\d*) ?([a-z]{1,2}|[a-z]+?)s?", re.IGNORECASE)
_NUMBER = r"(?:([\d.]+){})?"
_ISO = re.compile(
    "P" + "".join(map(_NUMBER.format, "YMWD")) + f"(?:T{''.join(map(_NUMBER.format, 'HMS'))})?"
)


def parse_duration(text: str, name: str) -> float:
    """Return the seconds of a length of time, such as "24h", "15 min", "day" or "P1Y".

    Months and years have their mean length. The name is the argument's, for errors.
    """
    iso, match = _ISO.fullmatch(text), _TEXT.fullmatch(text)
    units = (
        ("y", "month", "w", "d", "h", "min", "s") if iso else (match[2].lower(),) if match else ()
    )
    numbers = iso.groups("0") if iso else (match[1] or "1",) if match else ()
    try:
        seconds = sum(float(n) * _SECONDS[unit] for n, unit in zip(numbers, units, strict=True))
    except (KeyError, ValueError):
        seconds = 0.0
    if not seconds > 0.0:
        raise ValueError(
            f"{name} must be a length of time with its unit, such as 24h, 15min, 1d or P1Y, where "
            f"stamps are dates, got {text!r}"
        )
    return seconds


def duration_text(seconds: float) -> str:
    """Return a length of time with the largest unit of which it has two, or one."""
    units = (u for u in _UNITS if seconds >= 2 * u[0] or abs(seconds - u[0]) < 1e-9 * seconds)
    size, name = next(units, (1e-6, "us"))
    return f"{seconds / size:.6g}{name}"
