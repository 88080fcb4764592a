"""Lines of readings: what separates their cells, and which hold stamps and values.

What is found is told in notes; what is in doubt is asked for by the flag that settles it.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise, product
from typing import Any, NamedTuple

from ohsvgp.integrations.live.lines import UNITS, LineReader, split_cells
from ohsvgp.stream.stamps import stamp_text
from probseq_apps.settings.forecast import ForecastSettings

# Lines to look at, remarks beside: of a file; of a pipe, that it is told of, and that come later.
_LINES, _LINES_OF_PIPE, _LINES_TO_TELL, _LINES_TO_WATCH = 1_000, 100, 8, 60
_TIMES = ("timestamp", "datetime", "time", "_time", "date", "year", "t")
_CLOCK, _COMMA = re.compile(r"\d?\d:\d\d(:\d\d.*)?"), re.compile(r"[+-]?\d+,\d+(E[+-]?\d+)?", re.I)
_DAYS = "%d.%m.%Y %d.%m.%y %d/%m/%Y %m/%d/%Y %d-%m-%Y %m-%d-%Y %Y/%m/%d %d/%m/%y %m/%d/%y"
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
# Seconds of 2000 and 2100 since 1970; thousands; forms of digits by their number.
_SINCE, _UNTIL, _THOUSANDS = 946_684_800, 4_102_444_800, re.compile(r"[+-]?[1-9]\d?\d?[.,]\d{3}")
_DIGITS = {10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


class Readings(NamedTuple):
    """Lines of a stream."""

    reader: LineReader
    lines: Iterator[str]  # all of them, as stamp and value; those above the first as remarks
    target: str  # column of the values
    calendar: bool  # whether stamps are dates
    notes: list[str]


class _Table(NamedTuple):
    """First lines in cells."""

    split: Callable[[str], dict[str, str]]  # a line into cells by the names of their columns
    decimal: str
    first: int  # number of the first line below the header
    columns: dict[str, list[str]]


def open_readings(settings: ForecastSettings, source: Iterator[str], piped: bool) -> Readings:
    """Find the columns of a file, or of a pipe by the first lines that have some."""
    first, rows, most = list[str](), 0, _LINES_OF_PIPE if piped else _LINES
    for line in source:
        first.append(line)
        rows += line.strip()[:1] not in ("", "#")
        try:
            if piped and rows:
                return _find(settings, first, _watched(settings, [*first], source))
        except ValueError as error:
            if rows == _LINES_TO_TELL:
                print(f"warning: no columns yet: {error}", file=sys.stderr, flush=True)
        if rows == most:
            break
    return _find(settings, first, source)


def _watched(settings: ForecastSettings, first: list[str], source: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a pipe; after some, or all, say what a file would be refused for."""
    for line in islice(source, max(_LINES_TO_WATCH - len(first), 0)):
        yield line
        first.append(line)
    try:
        _find(settings, first, iter(()))
    except ValueError as error:
        print(f"warning: {error}", file=sys.stderr, flush=True)
    yield from source


def _find(settings: ForecastSettings, lines: list[str], source: Iterator[str]) -> Readings:
    """Return what the first lines tell of all."""
    if "\0" in "".join(lines[:3]):
        raise ValueError("FILE must be text of its --encoding, such as utf-16, and not compressed")
    table = _split(settings, [line.strip() for line in lines])
    form = settings.date_format if "%" in (settings.date_format or "") else None
    reader, columns = LineReader("|", table.decimal, settings.missing, form), table.columns
    time = settings.time or _time(reader, columns)
    target = settings.target or _target(reader, columns, time)
    if wrong := {*time, target} - {*columns}:
        raise ValueError(f"--time and --target must be of {', '.join(columns)}, got {min(wrong)!r}")
    cells = [" ".join(row) for row in zip(*(columns[name] for name in time), strict=True)]
    forms = [settings.date_format] if settings.date_format else _forms(reader, cells)
    if len(forms) > 1:
        options = " or ".join(f"--date-format {form!r}" for form in forms)
        raise ValueError(f"{cells[0]!r} can be read in two ways: {options}")
    reader = replace(reader, date_format=(forms or [""])[0] or None)
    stamps = {cell: reader.stamp(cell) for cell in cells if _reads(reader.stamp, cell)}
    if not stamps:
        raise ValueError(f"--date-format must be the form of the stamps, such as {cells[0]!r}")
    cell, stamp = next(iter(stamps.items()))
    text = stamp_text(stamp.value / 10**9, stamp.zone) if stamp.calendar else str(stamp.value)
    others = [name for name in columns if name not in (*time, target)]
    kind = "dates" if stamp.calendar else "numbers"
    notes = [f"stamps: {' and '.join(time)}, {kind}; the first, {cell}, is read as {text}"]
    read = {cell: reader.value(cell) for cell in columns[target] if _reads(reader.value, cell)}
    numbers = [cell for cell, value in read.items() if value is not None]
    if settings.decimal is None and table.split is not _object:
        _check_thousands(numbers)
    text = max(numbers, key=len, default="")
    notes.append(f"values: {target}" + f"; {text} is read as {read.get(text)}" * bool(text))
    notes += [f"not used: {_with_cells(columns, others, 2)}"] * bool(others)
    if "\ufffd" in "".join(lines):
        notes.append(f"lines are not all {settings.encoding}: --encoding names theirs, as latin-1")
    values = [stamps[cell].value for cell in cells if cell in stamps]
    backward = sum(b < a for a, b in pairwise(values))
    if not settings.sort and 4 * backward > max(len(values), 16):
        raise ValueError(f"{backward} stamps go back, as from new to old: sort lines, or --sort")
    for name in others if len(values) == len(cells) else ():
        _check_series(values, name, columns[name])

    def pick(line: str) -> str:
        """Return stamp and value of a line, or the line where it has none."""
        with suppress(ValueError, KeyError):
            row = table.split(line.strip())
            return f"{' '.join(row[name] for name in time)}|{row.get(target, '')}"
        return line

    def stamp_of(line: str) -> float:
        return reader.read(line).time if _reads(reader.read, line) else float("inf")

    picked = map(pick, chain(lines[table.first :], source))
    remarks = (f"#{line}" for line in lines[: table.first])
    picked = chain(remarks, sorted(picked, key=stamp_of) if settings.sort else picked)
    return Readings(reader, picked, target, stamp.calendar, notes)


def _split(settings: ForecastSettings, texts: Sequence[str]) -> _Table:
    """Find what separates cells, and the header."""
    lines = {k: text for k, text in enumerate(texts) if text and text[0] != "#"}
    if not lines:
        raise ValueError("FILE must have lines of stamp and value, and has none")
    start, text = next(iter(lines.items()))
    if text[0] == "[":
        raise ValueError("lines must each be an object of JSON: `jq -c '.[]'` makes them of a list")
    if text[0] == "{":
        rows = [_object(text) for text in lines.values() if _reads(_object, text)]
        names = dict.fromkeys(name for row in rows for name in row)
        return _Table(_object, ".", start, {n: [row.get(n, "") for row in rows] for n in names})
    excel = re.fullmatch("sep=(.)", text)
    if excel:
        del lines[start]
    separator = settings.separator or (excel and excel[1]) or _separator([*lines.values()])
    split = str.split if separator == " " else partial(split_cells, separator=separator)
    rows = {k: split(text) for k, text in lines.items()}
    ((width, _),) = Counter(map(len, rows.values())).most_common(1) or [(1, 0)]
    if width == 1:
        raise ValueError(
            f"a line must have stamp and value, got {text[:60]!r}: --separator names what is "
            "between them; `nl -s,` numbers lines that are values alone"
        )
    rows = {k: row for k, row in rows.items() if len(row) == width}
    commas = separator != "," and any(_COMMA.fullmatch(c) for row in rows.values() for c in row)
    reader = LineReader("|", decimal := settings.decimal or ("," if commas else "."))
    first, names = next(iter(rows.items()))
    if any(name and (_reads(reader.value, name) or _reads(reader.stamp, name)) for name in names):
        names = [""] * width
    else:
        del rows[first]
        first += 1
    if not rows:
        raise ValueError(f"no line has stamp and value, but only names: {', '.join(names)}")
    names = [name if names.count(name) == 1 else str(k) for k, name in enumerate(names, 1)]
    columns = dict(zip(names, map(list, zip(*rows.values(), strict=True)), strict=True))
    return _Table(lambda text: dict(zip(names, split(text), strict=True)), decimal, first, columns)


def _check_thousands(cells: Sequence[str]) -> None:
    """Refuse whole numbers beside others with three digits behind a mark, as 987 and 1.208."""
    marked = [cell for cell in cells if _THOUSANDS.fullmatch(cell)]
    whole = all(cell in marked or cell.lstrip("+-").isdecimal() for cell in cells)
    if whole and 0 < len(marked) < len(cells):
        cell, mark = marked[0], marked[0][-4]
        raise ValueError(f"{cell} may be a thousand: --decimal {mark} if not, else take {mark} out")


def _with_cells(columns: dict[str, list[str]], names: Sequence[str], most: int = 1) -> str:
    """Return names of columns with first cells that differ."""
    few = {name: [*dict.fromkeys(filter(None, columns[name]))][:most] for name in names}
    return ", ".join(f"{name or 'no name'} ({', '.join(cells)})" for name, cells in few.items())


def _object(text: str) -> dict[str, str]:
    """Return the texts and numbers of an object of JSON, as they are written."""
    values = json.loads(text, parse_float=str, parse_int=str)
    if not isinstance(values, dict):
        raise ValueError(f"a line must be an object of JSON, got {text!r}")
    values = {name: "" if value is None else value for name, value in values.items()}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _separator(texts: Sequence[str]) -> str:
    """Return the mark that most lines have, and equally often; else spaces."""
    for mark in ";\t|,":
        widths = Counter(len(split_cells(text, mark)) for text in texts)
        if any(width > 1 and 2 * count > len(texts) for width, count in widths.items()):
            return mark
    return " "


def _time(reader: LineReader, columns: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the column of the stamps by its name or cells, or those of date and time of day."""
    forms = {name: _forms(reader, cells) for name, cells in columns.items()}
    dates = [name for name in columns if forms[name] and forms[name] != ["number"]]
    clocks = [name for name in columns if all(map(_CLOCK.fullmatch, columns[name]))]
    if len(dates) == len(clocks) == 1:
        return dates[0], clocks[0]
    names = {name.lower(): name for name in columns}
    named = [names[name] for name in _TIMES if name in names and forms[names[name]]]
    for chosen in (named[:1], dates, [*columns][: len(columns) == 2]):
        if len(chosen) == 1 and forms[chosen[0]]:
            return (chosen[0],)
    cells = _with_cells(columns, [*columns])
    raise ValueError(f'--time must name the stamps, or --date-format, as "%b %d %Y", of {cells}')


def _forms(reader: LineReader, cells: Sequence[str]) -> list[str]:
    """Return the forms of dates that cells have, "" for ISO 8601, or "number"; none of others."""
    if reader.date_format is not None:
        return [reader.date_format] if _read(reader.stamp, cells) else []
    numbers = _read(replace(reader, date_format="number").stamp, cells)
    form = _DIGITS.get(len(cells[0]), "") if cells[0][:2] in ("19", "20") else ""
    if form and _read(replace(reader, date_format=form).stamp, cells):
        return [form]
    for form, size in UNITS.items():
        if numbers and all(_SINCE <= number.value * size <= _UNTIL for number in numbers):
            return [form]
    if stamps := _read(reader.stamp, cells):
        # Counters run through numbers that are no months or days.
        return ["" if not numbers or all(stamp.calendar for stamp in stamps) else "number"]
    forms = map("".join, product(_DAYS.split(), _CLOCKS))
    return [form for form in forms if _read(replace(reader, date_format=form).stamp, cells)]


def _target(reader: LineReader, columns: dict[str, list[str]], time: Sequence[str]) -> str:
    """Return the only column of numbers beside the stamps, or the only one, if it is empty."""
    others = [name for name in columns if name not in time]
    named = [name for name in others if name.lower() not in ("", "index", "unnamed: 0")]
    numbers = [name for name in named if _read(reader.value, columns[name])]
    if len(named) == 1 and not any(columns[named[0]]):
        numbers = named
    if len(numbers) == 1:
        return numbers[0]
    wrong = {n: [c for c in columns[n] if numbers or not _reads(reader.value, c)] for n in others}
    cells = _with_cells(wrong, numbers or others) or "objects in objects (jq takes values out)"
    form = "holds numbers (--decimal, --missing) without units or marks of thousands, and not as"
    what = "is one of" if numbers else form
    raise ValueError(f"--target must name the column of values, which {what} {cells}")


def _check_series(stamps: Sequence[float | int], name: str, cells: Sequence[str]) -> None:
    """Refuse several series, whose names are in a column: of few values, beside equal stamps."""
    most, series = len(stamps) // 3, list(dict.fromkeys(cells))
    pairs = len(set(zip(stamps, cells, strict=True)))
    if len(set(stamps)) <= 2 * most and 2 <= len(series) <= most and pairs > 2.7 * most:
        raise ValueError(
            f"stamps repeat, and {name} has {len(series)} values ({', '.join(series[:3])}): keep "
            "the lines of one (grep), or see forecast_group of ohsvgp.integrations.frames; a part "
            "of the stamps belongs to --time"
        )


def _reads(read: Callable[[str], Any], cell: str) -> bool:
    with suppress(ValueError):
        read(cell)
        return True
    return False


def _read(read: Callable[[str], Any], cells: Sequence[str]) -> list[Any]:
    """Return cells as they are read; none where most of the first, or of all, cannot be."""
    for some in (cells[:9], cells):
        content = [cell for cell in some if cell]
        values = [read(cell) for cell in content if _reads(read, cell)]
        if 10 * len(values) < 7 * len(content):
            return []
    return values
