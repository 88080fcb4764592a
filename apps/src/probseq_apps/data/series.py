"""Real series over time: standard sets, one that a dependency ships, CSV files, moving digits."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy import ndimage

from probseq.checks import parse_number
from probseq_apps.data.columns import StampColumn, check_squares
from probseq_apps.data.fetch import published_file
from probseq_apps.data.image_files import read_part
from probseq_apps.data.names import CSV_PREFIX, DataError, reading, user_path
from probseq_apps.data.tables import Marks, csv_header, read_rows

_STRETCH = slice(20_000, 31_250)  # of the sub-band: 9,000 samples to learn and 2,250 to test
_SAMPLES_PER_MS, _AUDIO_NOISE = 4, 0.1
_COVID_DAYS = (date(2020, 3, 1), date(2021, 2, 28))
_TOY_POINTS, _TOY_NOISE = 240, 0.1
_EMPTY = ("", "na", "nan", "null", "none")


class Columns(NamedTuple):
    """Columns of a CSV file: stamps, targets, and which series a row belongs to; how it looks."""

    time: str
    targets: tuple[str, ...]
    series: str | None = None
    marks: Marks = Marks()


_COLUMNS = Columns("time", ("value",))


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


@dataclass(frozen=True, eq=False)
class ChannelSeries:
    """Channels that share their time stamps."""

    name: str  # as on the command line
    time: Float64[np.ndarray, " n"]
    values: Float64[np.ndarray, "n d"]  # one row per stamp
    channels: tuple[str, ...]  # names of the columns of ``values``
    time_label: str  # what time is counted in
    frame: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()  # what a reader of results must know about the data


def load_series(name: str, data_dir: Path | None = None, *, columns: Columns = _COLUMNS) -> Series:
    """Read a series: one of `READERS`, or ``csv:PATH``."""
    path = user_path(name)
    return READERS[name](data_dir) if path is None else read_csv_series(path, columns)


_Row = tuple[float, str, list[float]]  # stamp, series, targets


def read_csv_series(path: Path, columns: Columns) -> Series:
    """Read columns of a CSV file with a header; rows without a value are gaps.

    Stamps are numbers, or ISO 8601 dates and times, which become days since the first, in any
    order; targets numbers, or empty, `NA`, `NaN`, `null` or `none` for a gap. Several targets, or
    several series, are learned side by side: at the stamps that all of them have.
    """
    stamps = StampColumn(columns.time)

    def parse(stamp: str, *cells: str) -> _Row | None:
        numbers, series = (cells[:-1], cells[-1]) if columns.series else (cells, "")
        at = stamps.parse(stamp)
        if any(cell.strip().lower() in _EMPTY for cell in numbers):
            return None
        return at, series, [columns.marks.number(cell) for cell in numbers]

    wanted = [(columns.time, "stamps, --time")]
    wanted += [(name, "targets, --target") for name in columns.targets]
    wanted += [(columns.series, "series, --series")] if columns.series else []
    parsed = read_rows(path, wanted, parse, marks=columns.marks)
    rows = [row for row in parsed if row is not None]
    if not rows:
        raise DataError(f"{path} holds no values in column {', '.join(map(repr, columns.targets))}")
    gaps, names = len(parsed) - len(rows), columns.targets
    notes = [f"{gaps:,} rows without a value are left out"] if gaps else []
    times, values = [at for at, _, _ in rows], np.array([numbers for _, _, numbers in rows])
    if columns.series:
        times, values, names, note = _side_by_side(path, rows)
        notes += note
    for name, numbers in ((columns.time, np.array(times)), *zip(names, values.T, strict=True)):
        check_squares(numbers, f"{path}: column {name!r}")
    time, label, values, moved = stamps.in_order(times, values, "days")
    values = values.T if len(names) > 1 else values[:, 0]
    return Series(f"{CSV_PREFIX}{path}", time, values, label, ", ".join(names), (*notes, *moved))


def _side_by_side(
    path: Path, rows: Sequence[_Row]
) -> tuple[list[float], NDArray[np.float64], tuple[str, ...], list[str]]:
    """Return the stamps that all series have, a column for each series, their names, and a note."""
    names = tuple(dict.fromkeys(series for _, series, _ in rows))
    table: dict[float, dict[str, float]] = {}
    for at, series, (value,) in rows:
        if series in table.setdefault(at, {}):
            raise DataError(f"{path}: series {series!r} has the stamp {at:g} twice")
        table[at][series] = value
    whole = {at: row for at, row in table.items() if len(row) == len(names)}
    if not whole:
        raise DataError(f"{path}: there is no stamp that all of the series {names} have")
    values = np.array([[row[name] for name in names] for row in whole.values()])
    left = len(table) - len(whole)
    notes = [f"{left:,} stamps that not all series have are left out"] if left else []
    return list(whole), values, names, notes


def read_csv_channels(path: Path, column: str = "time") -> ChannelSeries:
    """Read a CSV file with a header: a time column, and channels in all others."""
    header = csv_header(path)
    names = tuple(name for name in header if name != column)
    if header == [column]:
        raise DataError(f"{path} needs at least one channel beside {column!r}")
    stamps = StampColumn(column)

    def parse(stamp: str, *cells: str) -> tuple[float, list[float]]:
        if "" in map(str.strip, cells):
            raise ValueError("every channel needs a value: fill the gap, or leave the row out")
        return stamps.parse(stamp), [parse_number(cell) for cell in cells]

    wanted = [(column, "stamps, --time"), *((name, "channel") for name in names)]
    rows = read_rows(path, wanted, parse)
    times, values = [at for at, _ in rows], np.array([numbers for _, numbers in rows])
    time, label, table, notes = stamps.in_order(times, values, "hours")
    return ChannelSeries(f"{CSV_PREFIX}{path}", time, table, names, label, notes=notes)


def _sp500(data_dir: Path | None) -> Series:
    """Read the monthly S&P 500 index since 1990, of matplotlib's sample data."""
    import matplotlib  # late: slow to import

    path = Path(matplotlib.get_data_path()) / "sample_data" / "Stocks.csv"
    with reading(path, "matplotlib's sample data"):
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = csv.DictReader(line for line in lines if line[:1] != "#")
        quotes = [
            (date.fromisoformat(row["Date"]), float(row["^GSPC"])) for row in rows if row["^GSPC"]
        ]
    time = np.array([_year(day) for day, _ in quotes])
    values = np.log([value for _, value in quotes])
    return Series("sp500", time, values, "year", "log of the S&P 500 index")


def _year(day: date) -> float:
    """Return the year and the part of it that has passed."""
    start, end = date(day.year, 1, 1), date(day.year + 1, 1, 1)
    return day.year + (day - start) / (end - start)


def _toy(data_dir: Path | None) -> Series:
    """Make two sines with a little noise, for the small figures of the thesis."""
    time = np.linspace(0.0, 3.0, _TOY_POINTS)
    noise = _TOY_NOISE * np.random.default_rng(0).standard_normal(_TOY_POINTS)
    values = np.sin(4.0 * time) + 0.5 * np.sin(11.0 * time) + noise
    note = f"sin 4t + ½ sin 11t and noise of standard deviation {_TOY_NOISE}: a generated series"
    return Series("toy", time, values, "t", "y", (note,))


def _solar(data_dir: Path | None) -> Series:
    """Read the total solar irradiance by year (Lean 2004), x = (year − 1610.5)/10."""
    columns = Columns("year", ("tsi_11yr_cycle_plus_background",))
    series = read_csv_series(published_file("solar", data_dir), columns)
    time = (series.time - 1610.5) / 10.0
    return Series("solar", time, series.values, "decades since 1610.5", "irradiance")


def _audio(data_dir: Path | None) -> Series:
    """Read a stretch of the demodulated sub-band of Bui and Turner 2014."""
    path = published_file("audio", data_dir)
    # Opened here: of a damaged archive numpy leaves its own file open.
    with (
        reading(path, "an NPZ file of the sub-band"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        values = arrays["demodulated"][_STRETCH].astype(np.float64)
        if len(values) < _STRETCH.stop - _STRETCH.start:
            raise ValueError(f"demodulated must have {_STRETCH.stop:,} samples or more")
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


def _covid(data_dir: Path | None) -> Series:
    """Read the daily deaths in Santa Catarina, March 2020 to February 2021."""
    path = published_file("covid", data_dir)
    columns = (("date", "time"), ("new_deaths", "target"))
    rows = read_rows(path, columns, lambda *row: (date.fromisoformat(row[0]), parse_number(row[1])))
    rows = [(day, count) for day, count in rows if _COVID_DAYS[0] <= day <= _COVID_DAYS[1]]
    if not rows:
        raise DataError(f"{path} holds no day between {_COVID_DAYS[0]} and {_COVID_DAYS[1]}")
    days, counts = [day for day, _ in rows], np.array([count for _, count in rows])
    notes = [f"deaths by day of report, {days[0]} to {days[-1]}"]
    if (counts < 0.0).any():
        notes.append(f"{int((counts < 0).sum())} correction below zero is set to zero")
    time = np.array([(day - days[0]).days for day in days], dtype=np.float64)
    return Series("covid", time, counts.clip(min=0.0), "days", "deaths", tuple(notes))


# Each is given the folder of --data-dir.
READERS: dict[str, Callable[[Path | None], Series]] = {
    "sp500": _sp500,
    "toy": _toy,
    "solar": _solar,
    "audio": _audio,
    "covid": _covid,
}

_DIGIT, _SIDE = 8, 16  # pixels of scikit-learn's pictures and of the canvas
_GREY = 16.0  # levels
# Oscillations per hundred frames of the two waves of a path: no common period within a series.
_WAVES = (0.9, 2.3)
_TURNED = 3  # class of the MNIST digit that turns


def moving_digits(num_frames: int) -> ChannelSeries:
    """Make a film of a real digit that moves over a canvas of 16x16 pixels; grey is in [0, 1].

    On each axis its path is the sum of two waves with random phases and speeds.
    """
    from sklearn.datasets import load_digits  # late: slow to import

    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    (chosen,) = rng.choice(len(images), 1, replace=False)
    canvas = np.zeros((_SIDE, _SIDE))
    canvas[:_DIGIT, :_DIGIT] = images[chosen].reshape(_DIGIT, _DIGIT) / _GREY
    waves, frames = np.zeros((num_frames, 2)), np.arange(num_frames)[:, None] / 100.0
    for wave in _WAVES:
        speed = wave * rng.uniform(0.8, 1.25, 2)
        waves += np.sin(2.0 * math.pi * (speed * frames + rng.uniform(0.0, 1.0, 2)))
    # Two waves of amplitude one lie in [−2, 2]: the upper left corner stays inside the canvas.
    path = (_SIDE - _DIGIT) * (waves + 2.0) / 4.0
    # With "grid-constant", what lies at the edge fades into the zeros outside, and doesn't vanish.
    film = [ndimage.shift(canvas, at, order=1, mode="grid-constant", cval=0.0) for at in path]
    note = f"a real {labels[chosen]} of scikit-learn's digits; its motion is generated"
    return _film("moving-digits", film, note)


def rotated_mnist(num_frames: int, data_dir: Path | None) -> ChannelSeries:
    """Make a film of MNIST's first 3, which turns around once; grey is in [0, 1]."""
    images = read_part("mnist", "train", data_dir, download=False)
    digit = images.inputs[images.targets == _TURNED][0, 0].numpy() / 255.0
    angles = np.linspace(0.0, 360.0, num_frames, endpoint=False)
    film = [ndimage.rotate(digit, angle, reshape=False, order=1) for angle in angles]
    note = f"a real {_TURNED} of MNIST; it turns around once, {360 / num_frames:g} degrees a frame"
    return _film("rotated-mnist", film, note)


def _film(name: str, frames: Sequence[NDArray[np.float64]], note: str) -> ChannelSeries:
    height, width = frames[0].shape
    names = tuple(f"pixel {row},{column}" for row in range(height) for column in range(width))
    time, values = np.arange(len(frames), dtype=np.float64), np.stack(frames)
    flat = values.reshape(len(frames), -1)
    return ChannelSeries(name, time, flat, names, "frame", (height, width), (note,))
