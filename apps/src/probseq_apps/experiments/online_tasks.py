"""A stream cut into tasks: what is learned when, and what is kept for evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.data.series import Series, load_series
from probseq_apps.data.tables import Table, load_table
from probseq_apps.experiments.online_settings import OnlineSettings, StreamSettings

_STANDARDISED = ("gaussian", "student-t")
_GRID = 500
_LEAST_POINTS = 3  # of a task: one for evaluation, and two that make a curve
_GRID_SIDE = 60
_GRID_MARGIN = 0.5

Part = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Places of a task's training and test points."""


@dataclass(frozen=True, eq=False)
class Task:
    """What comes at once, in order, and the points near it that are kept for evaluation.

    Inputs are times of shape (n,) or points of shape (n, d).

    Attributes:
        x: inputs to learn.
        y: their targets.
        test_x: inputs for evaluation.
        test_y: their targets.
    """

    x: Float[Tensor, "n ..."]
    y: Float[Tensor, " n"]
    test_x: Float[Tensor, "k ..."]
    test_y: Float[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class Stream:
    """A data set as one seed sees it.

    Attributes:
        name: as on the command line.
        tasks: in the order of learning.
        grid: inputs to draw the prediction at; None for more than two dimensions.
        input_label: what the inputs are.
        target_label: what the targets are.
        notes: what a reader of results must know.
    """

    name: str
    tasks: tuple[Task, ...]
    grid: Float[Tensor, "g ..."] | None
    input_label: str
    target_label: str
    notes: tuple[str, ...]

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


def load_stream(settings: OnlineSettings, data_dir: Path | None, *, seed: int) -> Stream:
    """Read a data set and cut it into tasks, in the same way for all methods.

    Args:
        settings: names the data, the split and the tasks.
        data_dir: folder of the standard sets.
        seed: of the split.

    Raises:
        DataError: the data are missing or damaged.
        ValueError: there are too few points for the tasks.
    """
    if settings.of_time:
        stream = settings.stream
        series = load_series(
            settings.data,
            data_dir,
            time_column=stream.time_column,
            target_column=stream.target_column,
        )
        return cut_series(series, settings, seed=seed)
    return cut_table(load_table(settings.data, data_dir, seed=seed), settings, seed=seed)


def cut_series(series: Series, settings: OnlineSettings, *, seed: int) -> Stream:
    """Take random points out for evaluation, and cut the others into sequential tasks.

    A point for evaluation belongs to the task in whose time it lies. For the standard sets they
    are drawn from all points, with a known generator of splits, so that others can draw the same
    ones; from a file of one's own, which may be short, they are drawn task by task.

    Args:
        series: the data.
        settings: share of the points for evaluation, number of tasks, likelihood.
        seed: of the choice; for standard sets, scikit-learn's ``random_state``.

    Raises:
        ValueError: a task would be empty, or have no point for evaluation.
    """
    own = series.name.startswith(CSV_PREFIX)
    parts = (_stratified if own else _drawn)(series, settings.stream, seed=seed)
    test = np.zeros(len(series), dtype=np.bool_)
    test[np.concatenate([kept for _, kept in parts])] = True
    y, note = _targets(series.values, test, settings)
    time = series.time
    grid = torch.linspace(float(time[0]), float(time[-1]), _GRID, dtype=torch.float64)
    return Stream(
        series.name,
        _tasks(time, y, parts),
        grid,
        series.time_label,
        series.target_label,
        (*series.notes, *note),
    )


def cut_table(table: Table, settings: OnlineSettings, *, seed: int) -> Stream:
    """Sort points by their first input or distance from the origin, and cut them into tasks.

    Inputs are standardised on the training points, but for two moons, whose inputs are a plane.

    Args:
        table: the data with their split.
        settings: order, number of tasks, likelihood.
        seed: which the split came from, for messages.

    Raises:
        ValueError: a task would be empty, or have no point for evaluation.
    """
    x, notes = table.x, list(table.notes)
    if settings.model.likelihood != "bernoulli":
        scale = x[~table.test].std(0)
        x = (x - x[~table.test].mean(0)) / np.where(scale > 0.0, scale, 1.0)
        notes.append("inputs are standardised on the training points")
    y, note = _targets(table.y, table.test, settings)
    key = x[:, 0] if settings.stream.order == "first" else np.linalg.norm(x, axis=1)
    order = np.argsort(key, kind="stable")
    hint = f"with seed {seed}: lower --num-tasks"
    parts = _sequential(key[order], table.test[order], settings.stream.num_tasks, hint=hint)
    tasks = _tasks(x[order], y[order], parts)
    grid = _plane(x) if x.shape[1] == 2 else None
    label = ", ".join(table.columns)
    return Stream(table.name, tasks, grid, label, table.target_label, (*notes, *note))


def _targets(
    values: NDArray[np.float64], test: NDArray[np.bool_], settings: OnlineSettings
) -> tuple[Float64[np.ndarray, " n"], tuple[str, ...]]:
    if settings.model.likelihood not in _STANDARDISED:
        return values, ()
    mean, std = float(values[~test].mean()), float(values[~test].std())
    if std == 0.0:
        raise ValueError(
            f"targets of {settings.data!r} are all {mean:g}: there is nothing to learn"
        )
    return (values - mean) / std, ("targets are standardised on the training points",)


def _drawn(series: Series, settings: StreamSettings, *, seed: int) -> list[Part]:
    from sklearn.model_selection import train_test_split  # late: slow to import

    count = len(series)
    test = np.zeros(count, dtype=np.bool_)
    size = round(settings.test_share * count)
    if size:
        test[train_test_split(np.arange(count), test_size=size, random_state=seed)[1]] = True
    hint = f"with seed {seed}: lower --num-tasks or raise --test-share"
    return _sequential(series.time, test, settings.num_tasks, hint=hint)


def _stratified(series: Series, settings: StreamSettings, *, seed: int) -> list[Part]:
    """Sequential tasks that each have their share of points for evaluation, one at least."""
    count, num_tasks = len(series), settings.num_tasks
    if count < _LEAST_POINTS * num_tasks:
        raise ValueError(
            f"{series.name} has {count:,} points with a value, which cannot be cut into "
            f"{num_tasks} tasks of {_LEAST_POINTS} or more (seed {seed}, --test-share "
            f"{settings.test_share:g}): lower --num-tasks"
        )
    generator = np.random.default_rng(seed)
    parts: list[Part] = []
    for block in np.array_split(np.arange(count), num_tasks):
        start, end = block[0], block[-1] + 1
        size = round(settings.test_share * end) - round(settings.test_share * start)
        # A task's last point is learned: those for evaluation lie in the time that it has seen.
        size = min(max(size, 1), len(block) - 1)
        kept = np.sort(generator.choice(block[:-1], size, replace=False))
        parts.append((np.setdiff1d(block, kept), kept))
    return parts


def _sequential(
    key: Float64[np.ndarray, " n"], test: Bool[np.ndarray, " n"], num_tasks: int, *, hint: str
) -> list[Part]:
    """Places of the training and test points of sequential tasks, of points sorted by a key."""
    train = np.flatnonzero(~test)
    if len(train) < num_tasks:
        raise ValueError(
            f"--num-tasks must be at most the number of training points {len(train)}, "
            f"got {num_tasks}"
        )
    blocks = np.array_split(train, num_tasks)
    # A point for evaluation belongs to the first task that ends at or after it, or to the last.
    ends = key[[block[-1] for block in blocks[:-1]]]
    kept = np.flatnonzero(test)
    owners = np.searchsorted(ends, key[kept], side="left")
    parts = [(block, kept[owners == number]) for number, block in enumerate(blocks)]
    for number, (_, own) in enumerate(parts, 1):
        if len(own) == 0:
            raise ValueError(f"task {number} of {num_tasks} has no point for evaluation {hint}")
    return parts


def _tasks(
    x: Float64[np.ndarray, "n ..."], y: Float64[np.ndarray, " n"], parts: Sequence[Part]
) -> tuple[Task, ...]:
    return tuple(
        Task(*(torch.from_numpy(array) for array in (x[train], y[train], x[kept], y[kept])))
        for train, kept in parts
    )


def _plane(x: NDArray[np.float64]) -> Float[Tensor, "g 2"]:
    sides = [
        torch.linspace(
            float(column.min()) - _GRID_MARGIN,
            float(column.max()) + _GRID_MARGIN,
            _GRID_SIDE,
            dtype=torch.float64,
        )
        for column in x.T
    ]
    return torch.cartesian_prod(*sides)
