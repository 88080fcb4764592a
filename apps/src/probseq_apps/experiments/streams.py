"""A data set cut into tasks: what is learned when, and what is kept for evaluation."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from probseq_apps.data.names import CSV_PREFIX, DataError, own_path
from probseq_apps.data.series import ChannelSeries, Columns, Series, load_series
from probseq_apps.data.tables import Table, load_table, read_csv_points
from probseq_apps.engine.config import derive_seed
from probseq_apps.settings.online import (
    STANDARDISED,
    ChannelSettings,
    OnlineSettings,
    StreamSettings,
)

_GRID = 500
_LEAST_POINTS = 3  # of a task: one for evaluation, and two that make a curve
_GRID_SIDE, _GRID_MARGIN = 60, 0.5

# Places of a task's training and test points.
Part = tuple[NDArray[np.intp], NDArray[np.intp]]


class Task(NamedTuple):
    """What comes at once, in order, and the points near it that are kept for evaluation."""

    x: Tensor  # inputs to learn, times of shape (n,) or points of shape (n, d)
    y: Tensor  # their targets, shape (n,), or (k, n) for k series side by side; (n, d) of channels
    test_x: Tensor
    test_y: Tensor


class Stream(NamedTuple):
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

    def sizes(self) -> tuple[list[int], list[int]]:
        """Points of each task to learn, and for evaluation."""
        return [len(task.x) for task in self.tasks], [len(task.test_x) for task in self.tasks]


def load_stream(settings: OnlineSettings, data_dir: Path | None, *, seed: int) -> Stream:
    """Read a data set and cut it into tasks, in the same way for all methods."""
    stream, own = settings.stream, own_path(settings.data)
    if settings.of_time:
        columns = Columns(stream.time_column, stream.targets, stream.series_column)
        series = load_series(settings.data, data_dir, columns=columns)
        return cut_series(series, settings, seed=seed)
    if own is None:
        return cut_table(load_table(settings.data, data_dir, seed=seed), settings, seed=seed)
    names = (stream.inputs, stream.targets)
    table = read_csv_points(own, *names, test_share=stream.test_share, seed=seed)
    return cut_table(table, settings, seed=seed)


def cut_series(series: Series, settings: OnlineSettings, *, seed: int) -> Stream:
    """Take random points out for evaluation, and cut the others into sequential tasks.

    A point for evaluation belongs to the task in whose time it lies. For the standard sets they
    are drawn from all points, with a known generator of splits, so that others can draw the same
    ones; from a file of one's own, which may be short, they are drawn task by task.
    """
    own = series.name.startswith(CSV_PREFIX)
    parts = (_stratified if own else _drawn)(series, settings.stream, seed=seed)
    test = np.zeros(len(series), dtype=np.bool_)
    test[np.concatenate([kept for _, kept in parts])] = True
    y, note = _targets(series.values, test, settings)
    time, labels = series.time, (series.time_label, series.target_label)
    grid = torch.linspace(float(time[0]), float(time[-1]), _GRID, dtype=torch.float64)
    return Stream(series.name, _tasks(time, y, parts), grid, *labels, (*series.notes, *note))


def cut_table(table: Table, settings: OnlineSettings, *, seed: int) -> Stream:
    """Sort points by their first input or distance from the origin, and cut them into tasks.

    Inputs are standardised on the training points, but for two moons, whose inputs are a plane.
    """
    x, notes = table.x, list(table.notes)
    if not (table.name == "two-moons" and settings.model.likelihood == "bernoulli"):
        scale = x[~table.test].std(0)
        x = (x - x[~table.test].mean(0)) / np.where(scale > 0.0, scale, 1.0)
        notes.append("inputs are standardised on the training points")
    y, note = _targets(table.y, table.test, settings)
    key = x[:, 0] if settings.stream.order == "first" else np.linalg.norm(x, axis=1)
    order = np.argsort(key, kind="stable")
    hint = f"with seed {seed}: lower --num-tasks"
    parts = _sequential(key[order], table.test[order], settings.stream.num_tasks, hint=hint)
    tasks = _tasks(x[order], y[..., order], parts)
    grid = _plane(x) if x.shape[1] == 2 else None
    label = ", ".join(table.columns)
    return Stream(table.name, tasks, grid, label, table.target_label, (*notes, *note))


def cut_channels(series: ChannelSeries, stream: ChannelSettings, *, seed: int) -> tuple[Task, ...]:
    """Cut a series of channels into tasks; times are counted in lengths of the first one.

    Pixels stay as they are. Other channels are standardised by what is learned in the first task:
    nothing that comes later is known when the stream starts.
    """
    K, length = stream.num_tasks, stream.task_length or len(series) // stream.num_tasks
    if length < _LEAST_POINTS or K * length > len(series):
        wanted = f"{_LEAST_POINTS} or more" if stream.task_length is None else f"{length}"
        raise DataError(
            f"{series.name} holds {len(series):,} time steps, too few for {K} tasks of {wanted}"
        )
    # What is left over by equal parts goes to the last task.
    last = K * length if stream.task_length else len(series)
    bounds = [*(k * length for k in range(K)), last]
    origin, end = series.time[0], series.time[length - 1]
    if not end > origin:
        raise DataError(f"{series.name}: the first task must take time, all its stamps are {end}")
    time = torch.from_numpy((series.time - origin) / (end - origin))
    values = torch.from_numpy(series.values)
    rng = np.random.default_rng(derive_seed(seed, "test steps"))
    parts = [_inner(start, stop, stream.test_share, rng) for start, stop in pairwise(bounds)]
    if series.frame is None:
        first = values[parts[0][0]]
        # A channel that hasn't moved yet has no scale of its own.
        std = first.std(0).nan_to_num(0.0)
        values = (values - first.mean(0)) / torch.where(std > 0.0, std, 1.0)
    return tuple(Task(time[own], values[own], time[test], values[test]) for own, test in parts)


def _targets(
    values: NDArray[np.float64], test: NDArray[np.bool_], settings: OnlineSettings
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    if settings.model.likelihood not in STANDARDISED:
        return values, ()
    known = values[..., ~test]
    mean, std = known.mean(-1, keepdims=True), known.std(-1, keepdims=True)
    if (std == 0.0).any():
        raise ValueError(
            f"targets of {settings.data!r} are all {mean[std == 0.0][0]:g}: there is nothing to "
            "learn"
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
    key: NDArray[np.float64], test: NDArray[np.bool_], num_tasks: int, *, hint: str
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


def _inner(start: int, stop: int, share: float, rng: np.random.Generator) -> Part:
    """Time steps to learn and to test, at least two and one."""
    count = min(max(1, round(share * (stop - start))), stop - start - 2)
    # The ends are learned, so that predictions lie between data.
    inner = rng.permutation(np.arange(start + 1, stop - 1))[:count]
    test = np.sort(inner)
    return np.setdiff1d(np.arange(start, stop), test), test


def _tasks(x: NDArray[Any], y: NDArray[Any], parts: Sequence[Part]) -> tuple[Task, ...]:
    return tuple(
        Task(*map(torch.from_numpy, (x[own], y[..., own], x[test], y[..., test])))
        for own, test in parts
    )


def _plane(x: NDArray[np.float64]) -> Float[Tensor, "g 2"]:
    ends = [(float(side.min()) - _GRID_MARGIN, float(side.max()) + _GRID_MARGIN) for side in x.T]
    sides = [torch.linspace(*end, _GRID_SIDE, dtype=torch.float64) for end in ends]
    return torch.cartesian_prod(*sides)
