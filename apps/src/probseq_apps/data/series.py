"""Real series of numbers over time: standard sets, one that a dependency ships, and CSV files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from probseq_apps.data.names import (
    CSV_PREFIX,
    DataError,
    data_folder,
    own_path,
    reading,
    unknown_name_message,
)
from probseq_apps.data.tabular import csv_columns, csv_header, is_tab_separated

SERIES_NAMES: tuple[str, ...] = ("sp500", "toy", "solar", "audio", "covid")

_STRETCH = slice(20_000, 31_250)  # of the sub-band: 9,000 samples to learn and 2,250 to test
_SAMPLES_PER_MS = 4
_AUDIO_NOISE = 0.1
_COVID_DAYS = (date(2020, 3, 1), date(2021, 2, 28))
_TOY_POINTS = 240
_TOY_NOISE = 0.1
_SECONDS = {"hours": 3_600.0, "days": 86_400.0}
_EMPTY = ("", "na", "nan", "null", "none")


class Columns(NamedTuple):
    """Columns of a CSV file: stamps, targets, and which series a row belongs to."""

    time: str
    targets: tuple[str, ...]
    series: str | None = None


@dataclass(frozen=True, eq=False)
class Series:
    """A series in the order of time."""

    name: str  # as on the command line
    time: Float64[np.ndarray, " n"]  # stamps in ``time_label``'s unit, not decreasing
    values: Float64[np.ndarray, "*k n"]  # the series, or several side by side in rows
    time_label: str  # what time is counted in
    target_label: str  # what the values are
    notes: tuple[str, ...] = ()  # what a reader of results must know about the data

    def __len__(self) -> int:
        return self.time.shape[0]


def load_series(
    name: str, data_dir: Path | None = None, *, columns: Columns | None = None
) -> Series:
    """Read a series."""
    path = own_path(name) if name.startswith(CSV_PREFIX) else None
    if path is not None:
        return read_csv_series(path, columns or Columns("time", ("value",)))
    if name in ("sp500", "toy"):
        return _sp500() if name == "sp500" else _toy()
    readers = {"solar": _solar, "audio": _audio, "covid": _covid}
    if name not in readers:
        raise DataError(unknown_name_message("series", name, (*SERIES_NAMES, "csv:PATH")))
    return readers[name](data_folder(name, data_dir))


def read_csv_series(path: Path, columns: Columns) -> Series:
    """Read columns of a CSV file with a header; rows without a value are gaps.

    Stamps are numbers, or ISO 8601 dates and times, which become days since the first, in any
    order; targets numbers, or empty, `NA`, `NaN`, `null` or `none` for a gap. Several targets, or
    several series, are learned side by side: at the stamps that all of them have.
    """
    time_column, targets = columns.time, columns.targets
    _check_separator(path, (time_column, *targets))
    stamps = TimeColumn(time_column)
    rows: list[tuple[float, str, list[float]]] = []
    gaps = 0
    wanted = [(time_column, "time"), *((name, "target") for name in targets)]
    wanted += [(columns.series, "series")] if columns.series else []
    for line, (stamp, *cells) in csv_columns(path, wanted):
        series = cells.pop() if columns.series else ""
        try:
            at = stamps.parse(stamp)
            if any(cell.strip().lower() in _EMPTY for cell in cells):
                gaps += 1
                continue
            rows.append((at, series, [parse_number(cell) for cell in cells]))
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    if not rows:
        raise DataError(f"{path} holds no values in column {', '.join(map(repr, targets))}")
    times, notes = [at for at, _, _ in rows], list[str]()
    values, names = np.array([found for _, _, found in rows]), targets
    if columns.series:
        times, values, names, notes = _side_by_side(path, rows)
    for name, numbers in ((time_column, np.array(times)), *zip(names, values.T, strict=True)):
        _check_squares(path, name, numbers)
    time, label, values, moved = stamps.in_order(times, values, "days")
    notes = [*([f"{gaps:,} rows without a value are left out"] if gaps else []), *notes, *moved]
    values = values.T if len(names) > 1 else values[:, 0]
    return Series(f"{CSV_PREFIX}{path}", time, values, label, ", ".join(names), tuple(notes))


def _side_by_side(
    path: Path, rows: Sequence[tuple[float, str, list[float]]]
) -> tuple[list[float], NDArray[np.float64], tuple[str, ...], list[str]]:
    """Return the stamps that all series have, a column for each series, their names, and a note."""
    names = tuple(dict.fromkeys(series for _, series, _ in rows))
    table: dict[float, dict[str, float]] = {}
    for at, series, (value,) in rows:
        if series in table.setdefault(at, {}):
            raise DataError(f"{path}: series {series!r} has the stamp {at:g} twice")
        table[at][series] = value
    whole = {at: found for at, found in table.items() if len(found) == len(names)}
    if not whole:
        raise DataError(f"{path}: there is no stamp that all of the series {names} have")
    values = np.array([[found[name] for name in names] for found in whole.values()])
    left = len(table) - len(whole)
    notes = [f"{left:,} stamps that not all series have are left out"] if left else []
    return list(whole), values, names, notes


class TimeColumn:
    """The time stamps of a table, cell by cell: numbers, or dates and times.

    Args:
        name: of the column.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calendar: bool | None = None

    def parse(self, cell: str) -> float:
        """Return a stamp, in seconds since 1970 for a date."""
        stamp, calendar = parse_stamp(cell)
        if self._calendar not in (None, calendar):
            raise ValueError(
                f"column {self._name!r} must hold numbers or dates, got both: {cell!r}"
            )
        self._calendar = calendar
        return stamp

    def in_order(
        self, times: Sequence[float], values: NDArray[np.float64], unit: str
    ) -> tuple[NDArray[np.float64], str, NDArray[np.float64], tuple[str, ...]]:
        """Sort rows by time; dates are counted from the first one."""
        time, notes = np.array(times), ()
        if (np.diff(time) < 0.0).any():
            order = np.argsort(time, kind="stable")
            time, values, notes = time[order], values[order], ("rows are sorted by time",)
        if not self._calendar:
            return time, self._name, values, notes
        return (time - time[0]) / _SECONDS[unit], f"{unit} since the first stamp", values, notes


def _check_separator(path: Path, columns: tuple[str, ...]) -> None:
    """Refuse a file whose cells are separated by semicolons."""
    header = csv_header(path)
    alone = len(header) == 1 and not is_tab_separated(path)
    if alone and ";" in header[0] and header[0] not in columns:
        raise DataError(
            f"{path} has one column {header[0]!r}, and its cells seem to be separated by "
            "semicolons: separate them by commas, or by tabs in a file named .tsv"
        )


def _check_squares(path: Path, column: str, numbers: NDArray[np.float64]) -> None:
    """Refuse numbers whose squares, which all methods take, overflow or vanish."""
    with np.errstate(over="ignore", under="ignore"):
        total, std = float(np.square(numbers).sum()), float(numbers.std())
    if not (math.isfinite(total) and math.isfinite(std)):
        largest = float(np.abs(numbers).max())
        raise DataError(
            f"{path}: column {column!r} holds numbers up to {largest:g} in size, whose squares "
            "overflow: give them in a larger unit"
        )
    if std == 0.0 and numbers.min() < numbers.max():
        raise DataError(
            f"{path}: column {column!r} holds numbers that differ by "
            f"{numbers.max() - numbers.min():g} at most, whose square vanishes: give them in a "
            "smaller unit"
        )


def parse_stamp(text: str) -> tuple[float, bool]:
    """Return a number, or an ISO 8601 date or time as seconds since 1970, and whether it is a date.

    A time without a zone is taken as UTC.
    """
    from ohsvgp.stream.clock import parse_stamp  # late: it loads torch

    stamp, calendar = parse_stamp(text)
    return (stamp / 10**9 if calendar else stamp), calendar


def parse_number(text: str) -> float:
    """Return a finite number."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"a value must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a value must be finite, got {text!r}")
    return number


def _sp500() -> Series:
    """Read the monthly S&P 500 index since 1990, of matplotlib's sample data."""
    import matplotlib  # late: a stream from standard input needs none

    path = Path(matplotlib.get_data_path()) / "sample_data" / "Stocks.csv"
    if not path.is_file():
        raise DataError(
            f"the sample data of matplotlib have no {path.name} in {path.parent}: install "
            "matplotlib from a wheel, or name other data"
        )
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    heads = lines[0].split(",")
    if "^GSPC" not in heads:
        raise DataError(f"{path} needs a column '^GSPC', it has {heads}")
    place = heads.index("^GSPC")
    rows = [line.split(",") for line in lines[1:]]
    found = [(date.fromisoformat(row[0]), float(row[place])) for row in rows if row[place]]
    time = np.array([_year(day) for day, _ in found])
    values = np.log([value for _, value in found])
    return Series("sp500", time, values, "year", "log of the S&P 500 index")


def _year(day: date) -> float:
    """Return the year and the part of it that has passed."""
    start, end = date(day.year, 1, 1), date(day.year + 1, 1, 1)
    return day.year + (day - start) / (end - start)


def _toy() -> Series:
    """Make two sines with a little noise, for the small figures of the thesis."""
    time = np.linspace(0.0, 3.0, _TOY_POINTS)
    noise = _TOY_NOISE * np.random.default_rng(0).standard_normal(_TOY_POINTS)
    values = np.sin(4.0 * time) + 0.5 * np.sin(11.0 * time) + noise
    note = f"sin 4t + ½ sin 11t and noise of standard deviation {_TOY_NOISE}: a generated series"
    return Series("toy", time, values, "t", "y", (note,))


def _solar(folder: Path) -> Series:
    """Read the total solar irradiance by year (Lean 2004), x = (year − 1610.5)/10."""
    series = read_csv_series(
        existing_file(folder / "solar_irradiance" / "solar_irradiance.csv"),
        Columns("year", ("tsi_11yr_cycle_plus_background",)),
    )
    time = (series.time - 1610.5) / 10.0
    return Series("solar", time, series.values, "decades since 1610.5", "irradiance")


def _audio(folder: Path) -> Series:
    """Read a stretch of the demodulated sub-band of Bui and Turner 2014."""
    path = existing_file(folder / "audio_subband" / "audio_subband.npz")
    with reading(path, "an NPZ file of the sub-band"), np.load(path, allow_pickle=False) as arrays:
        values = arrays["demodulated"][_STRETCH].astype(np.float64)
    if len(values) < _STRETCH.stop - _STRETCH.start:
        raise DataError(f"{path}: demodulated must have {_STRETCH.stop:,} samples or more")
    # Noise is part of their preparation, and the file comes without it. The sub-band alone has next
    # to none, so that densities would measure round-off.
    noise = np.random.default_rng(0).standard_normal(len(values))
    values += _AUDIO_NOISE * values.std() * noise
    note = (
        f"samples {_STRETCH.start:,} to {_STRETCH.stop - 1:,} of the demodulated sub-band, about "
        f"190 lengthscales; noise of {_AUDIO_NOISE} of its standard deviation is added"
    )
    time = np.arange(len(values)) / _SAMPLES_PER_MS
    return Series("audio", time, values, "ms", "sub-band", (note,))


def _covid(folder: Path) -> Series:
    """Read the daily deaths in Santa Catarina, March 2020 to February 2021."""
    path = existing_file(folder / "covid_deaths_brazil" / "santa_catarina.csv")
    days: list[date] = []
    deaths: list[float] = []
    for line, (day, count) in csv_columns(path, [("date", "time"), ("new_deaths", "target")]):
        try:
            days.append(date.fromisoformat(day))
            deaths.append(parse_number(count))
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    kept = [place for place, day in enumerate(days) if _COVID_DAYS[0] <= day <= _COVID_DAYS[1]]
    if not kept:
        raise DataError(f"{path} holds no day between {_COVID_DAYS[0]} and {_COVID_DAYS[1]}")
    counts = np.array(deaths)[kept]
    notes = [f"deaths by day of report, {days[kept[0]]} to {days[kept[-1]]}"]
    if (counts < 0.0).any():
        notes.append(f"{int((counts < 0).sum())} correction below zero is set to zero")
    time = np.array([(days[place] - days[kept[0]]).days for place in kept], dtype=np.float64)
    return Series("covid", time, counts.clip(min=0.0), "days", "deaths", tuple(notes))


def existing_file(path: Path) -> Path:
    """Return the path of a file of the standard sets that can be fetched."""
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: the data folder needs this file; --download fetches it"
        )
    return path
