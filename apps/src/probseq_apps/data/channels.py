"""Series of many channels that share their time stamps: CSV files, and digits that move.

The moving digits are real pictures of scikit-learn's on a canvas of 16x16 pixels, along smooth
generated paths.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from scipy import ndimage
from sklearn.datasets import load_digits

from probseq_apps.data.names import CSV_PREFIX, DataError
from probseq_apps.data.series import TimeColumn, parse_number
from probseq_apps.data.tabular import csv_columns, csv_header

MOVING_DIGITS = "moving-digits"

_DIGIT = 8  # side of scikit-learn's pictures
_SIDE = 16
_GREY = 16.0  # levels
# Oscillations per hundred frames of the two waves of a path: no common period within a series.
_WAVES = (0.9, 2.3)


@dataclass(frozen=True, eq=False)
class ChannelSeries:
    """Channels over time."""

    name: str  # as on the command line
    time: Float64[np.ndarray, " n"]
    values: Float64[np.ndarray, "n d"]  # one row per stamp
    channels: tuple[str, ...]  # names of the columns of ``values``
    time_label: str  # what time is counted in
    frame: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()  # what a reader of results must know about the data

    def __len__(self) -> int:
        return self.time.shape[0]


def read_csv_channels(path: Path, *, time_column: str = "time") -> ChannelSeries:
    """Read a CSV file with a header: a time column, and channels in all others."""
    header = csv_header(path)
    if header == [time_column]:
        raise DataError(f"{path} needs at least one channel beside {time_column!r}")
    names = tuple(name for name in header if name != time_column)
    column = TimeColumn(time_column)
    times: list[float] = []
    values: list[list[float]] = []
    columns = [(time_column, "time"), *((name, "channel") for name in names)]
    for line, (stamp, *cells) in csv_columns(path, columns):
        try:
            times.append(column.parse(stamp))
            values.append([_number(*pair) for pair in zip(names, cells, strict=True)])
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    if not times:
        raise DataError(f"{path} holds a header and no rows")
    time, label, table, notes = column.in_order(times, np.array(values), "hours")
    return ChannelSeries(f"{CSV_PREFIX}{path}", time, table, names, label, notes=notes)


def _number(channel: str, cell: str) -> float:
    if not cell.strip():
        raise ValueError(
            f"channel {channel!r} is empty, and every channel needs a value at every time: fill "
            "the gap, or leave the row out"
        )
    try:
        return parse_number(cell)
    except ValueError as error:
        raise ValueError(f"channel {channel!r}: {error}") from error


def moving_digits(num_frames: int) -> ChannelSeries:
    """Make a film of a digit that moves over a canvas of 16x16 pixels; grey levels are in [0, 1].

    On each axis its path is the sum of two waves with random phases and speeds.
    """
    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    (chosen,) = rng.choice(len(images), 1, replace=False)
    picture = images[chosen].reshape(_DIGIT, _DIGIT) / _GREY
    film = np.stack([_placed(picture, place) for place in _path(num_frames, rng)])
    names = tuple(f"pixel {row},{column}" for row in range(_SIDE) for column in range(_SIDE))
    note = (
        f"real pictures of {labels[chosen]} from scikit-learn's digits; their motion is generated"
    )
    time, values = np.arange(num_frames, dtype=np.float64), film.reshape(num_frames, -1)
    return ChannelSeries(MOVING_DIGITS, time, values, names, "frame", (_SIDE, _SIDE), (note,))


def _path(num_frames: int, rng: np.random.Generator) -> Float64[np.ndarray, "n 2"]:
    """Return the upper left corner of a digit in every frame, inside the canvas."""
    frames = np.arange(num_frames)[:, None] / 100.0
    waves = np.zeros((num_frames, 2))
    for wave in _WAVES:
        speed = wave * rng.uniform(0.8, 1.25, 2)
        waves += np.sin(2.0 * math.pi * (speed * frames + rng.uniform(0.0, 1.0, 2)))
    # Two waves of amplitude one lie in [−2, 2].
    return (_SIDE - _DIGIT) * (waves + 2.0) / 4.0


def _placed(
    picture: Float64[np.ndarray, "h w"], place: Float64[np.ndarray, " 2"]
) -> Float64[np.ndarray, "side side"]:
    """Return the picture with its corner at a place between pixels, by linear interpolation.

    With "grid-constant", what lies at the edge fades into the zeros outside instead of vanishing.
    """
    canvas = np.zeros((_SIDE, _SIDE))
    canvas[:_DIGIT, :_DIGIT] = picture
    return ndimage.shift(canvas, place, order=1, mode="grid-constant", cval=0.0)
