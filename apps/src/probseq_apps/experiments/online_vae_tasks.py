"""A series of channels cut into tasks, each with time steps to learn and to test."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.channels import ChannelSeries, moving_digits, read_csv_channels
from probseq_apps.data.names import DataError, own_path
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.online_vae_settings import OnlineVaeSettings

# Two time steps to learn and one to test.
_FEWEST = 3


class ChannelTask(NamedTuple):
    """A part of the stream; times in lengths of the first task.

    Attributes:
        t: times to learn.
        y: channels there.
        test_t: times to predict.
        test_y: channels there.
    """

    t: Float[Tensor, " n"]
    y: Float[Tensor, "n d"]
    test_t: Float[Tensor, " m"]
    test_y: Float[Tensor, "m d"]


class ChannelStream(NamedTuple):
    """The tasks.

    Attributes:
        series: where they come from.
        tasks: in the order of time.
        unit: what errors are measured in.
    """

    series: ChannelSeries
    tasks: tuple[ChannelTask, ...]
    unit: str


def load_channels(settings: OnlineVaeSettings) -> ChannelSeries:
    """The series: one film for all seeds, or a file.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = own_path(settings.data)
    if path is None:
        return moving_digits(settings.stream.num_frames)
    return read_csv_channels(path, time_column=settings.stream.time_column)


def make_stream(series: ChannelSeries, settings: OnlineVaeSettings, *, seed: int) -> ChannelStream:
    """Cut a series into tasks.

    Pixels stay as they are. Other channels are standardised by what is learned in the first task:
    nothing that comes later is known when the stream starts.

    Args:
        series: the data.
        settings: of the comparison.
        seed: chooses the time steps to test.

    Raises:
        DataError: too few time steps, or a first task that takes no time.
    """
    stream = settings.stream
    K, length = stream.num_tasks, stream.task_length or len(series) // stream.num_tasks
    if length < _FEWEST or K * length > len(series):
        wanted = f"{_FEWEST} or more" if stream.task_length is None else f"{length}"
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
    parts = [_split(start, stop, stream.test_share, rng) for start, stop in pairwise(bounds)]
    unit = "grey levels of [0, 1]"
    if series.frame is None:
        first = values[parts[0][0]]
        # A channel that hasn't moved yet has no scale of its own.
        std = first.std(0).nan_to_num(0.0)
        values = (values - first.mean(0)) / torch.where(std > 0.0, std, 1.0)
        unit = "standard deviations of the channel in the first task"
    tasks = tuple(
        ChannelTask(time[train], values[train], time[test], values[test]) for train, test in parts
    )
    return ChannelStream(series, tasks, unit)


def _split(
    start: int, stop: int, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Time steps to learn and to test, at least two and one."""
    count = min(max(1, round(share * (stop - start))), stop - start - 2)
    # The ends are learned, so that predictions lie between data.
    inner = rng.permutation(np.arange(start + 1, stop - 1))[:count]
    test = np.sort(inner)
    return np.setdiff1d(np.arange(start, stop), test), test
