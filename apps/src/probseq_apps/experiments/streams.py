"""Data sets of `probseq online` as streams of tasks."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ohsvgp.tasks import (
    Split,
    Task,
    sequential_splits,
    split_into_tasks,
    standardised,
    stratified_splits,
)
from probseq_apps.data.names import CSV_PREFIX, user_path
from probseq_apps.data.series import Columns, Series, load_series
from probseq_apps.data.tables import Marks, PointTable, load_table, read_csv_points
from probseq_apps.settings.online import STANDARDISED, OnlineSettings

_GRID = 500
_GRID_SIDE, _GRID_MARGIN = 60, 0.5


class TaskStream(NamedTuple):
    """A data set as one seed sees it."""

    name: str  # as on the command line
    tasks: tuple[Task, ...]  # in the order of learning
    grid: Float[Tensor, "g ..."] | None  # inputs to draw the prediction at
    input_label: str  # what the inputs are
    target_label: str  # what the targets are
    notes: tuple[str, ...]  # what a reader of results must know

    @property
    def dim(self) -> int:
        """Dimensions of an input."""
        x = self.tasks[0].x
        return 1 if x.ndim == 1 else x.shape[-1]

    @property
    def interval(self) -> tuple[float, float]:
        """First and last time of all points, those of later tasks and for evaluation too."""
        times = torch.cat([torch.cat([task.x, task.test_x]) for task in self.tasks])
        return float(times.min()), float(times.max())


def load_stream(settings: OnlineSettings, data_dir: Path | None, *, seed: int) -> TaskStream:
    """Read a data set and cut it into tasks, in the same way for all methods."""
    stream, path = settings.stream, user_path(settings.data)
    marks = Marks(stream.separator, stream.decimal, stream.encoding)
    if settings.of_time:
        columns = Columns(stream.time or "time", stream.target, stream.series, marks)
        series = load_series(settings.data, data_dir, columns=columns)
        return cut_series(series, settings, seed=seed)
    if path is None:
        return cut_table(load_table(settings.data, data_dir, seed=seed), settings)
    columns, share = (stream.inputs, stream.target, stream.time), stream.test_share
    points = read_csv_points(path, *columns, test_share=share, seed=seed, marks=marks)
    return cut_table(points, settings)


def cut_series(series: Series, settings: OnlineSettings, *, seed: int) -> TaskStream:
    """Take random points out for evaluation, and cut the others into sequential tasks.

    For the standard sets they are drawn from all points, with a known generator of splits, so that
    others can draw the same ones; from a file of one's own, which may be short, task by task.
    """
    from sklearn.model_selection import train_test_split  # late: slow to import

    count, num_tasks, share = len(series), settings.stream.num_tasks, settings.stream.test_share
    if series.name.startswith(CSV_PREFIX):
        splits = stratified_splits(count, num_tasks, share, seed=seed)
    else:
        test = np.zeros(count, dtype=np.bool_)
        if size := round(share * count):
            test[train_test_split(np.arange(count), test_size=size, random_state=seed)[1]] = True
        splits = sequential_splits(series.time, test, num_tasks)
    y, note = _targets(series.values, splits, settings)
    first, last = float(series.time[0]), float(series.time[-1])
    grid = torch.linspace(first, last, _GRID, dtype=torch.float64)
    labels = (series.time_label, series.target_label, (*series.notes, *note))
    return TaskStream(series.name, split_into_tasks(series.time, y, splits), grid, *labels)


def cut_table(table: PointTable, settings: OnlineSettings) -> TaskStream:
    """Sort points by stamp, first input or distance from the origin, and cut them into tasks.

    Inputs are standardised on the training points, but for two moons, whose inputs are a plane.
    """
    x, notes = table.x, list(table.notes)
    if not (table.name == "two-moons" and settings.model.likelihood == "bernoulli"):
        scale = x[~table.test].std(0)
        x = (x - x[~table.test].mean(0)) / np.where(scale > 0.0, scale, 1.0)
        notes.append("inputs are standardised on the training points")
    key = table.stamps
    if key is None:
        key = x[:, 0] if settings.stream.order == "first" else np.linalg.norm(x, axis=1)
    splits = sequential_splits(key, table.test, settings.stream.num_tasks)
    y, note = _targets(table.y, splits, settings)
    grid = _plane(x) if x.shape[1] == 2 else None
    labels = (", ".join(table.columns), table.target_label, (*notes, *note))
    return TaskStream(table.name, split_into_tasks(x, y, splits), grid, *labels)


def _targets(
    values: NDArray[np.float64], splits: list[Split], settings: OnlineSettings
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    if settings.model.likelihood not in STANDARDISED:
        return values, ()
    targets = standardised(values, splits, f"targets of {settings.data!r}")
    return targets, ("targets are standardised on the training points",)


def _plane(x: NDArray[np.float64]) -> Float[Tensor, "g 2"]:
    ends = [(float(side.min()) - _GRID_MARGIN, float(side.max()) + _GRID_MARGIN) for side in x.T]
    sides = [torch.linspace(*end, _GRID_SIDE, dtype=torch.float64) for end in ends]
    return torch.cartesian_prod(*sides)
