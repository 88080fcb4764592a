"""Streams that come task by task: how data are cut into tasks, and how well a model knows them."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ohsvgp.exact import ExactGP
from ohsvgp.information_loss import LostInformationWarning
from ohsvgp.likelihoods import Bernoulli, NegativeBinomial, Poisson
from ohsvgp.likelihoods import Gaussian as GaussianNoise
from ohsvgp.mismatch import PriorMismatchWarning
from ohsvgp.online import OnlineGP
from probseq.metrics import coverage_calibration_error, rmse

# Places of a task's points to learn and for evaluation.
Split = tuple[NDArray[np.intp], NDArray[np.intp]]
# Inducing points, and predictions on a grid by name.
GridPrediction = tuple[Tensor | None, dict[str, Tensor]]
# Of a task: one point for evaluation, and two that make a curve.
_MIN_TASK_POINTS = 3
# Standard deviations from the mean within which 95 % of a Gaussian lie.
_Z_95 = 1.959963984540054
# Draws of a count, for the coverage of thesis Eq. 4.20.
_NUM_COUNT_SAMPLES = 100


class Task(NamedTuple):
    """Points that come at once, in order, and those near them that are kept for evaluation."""

    x: Tensor  # inputs to learn, times of shape (n,) or points of shape (n, d)
    y: Tensor  # their targets, shape (n,), or (k, n) for k series side by side; (n, d) of channels
    test_x: Tensor
    test_y: Tensor


def sequential_splits(
    key: NDArray[np.float64], test: NDArray[np.bool_], num_tasks: int
) -> list[Split]:
    """Cut points, in the order of a key, into tasks with equally many points to learn.

    A point for evaluation belongs to the first task that ends at or after it, or to the last.
    """
    order = np.argsort(key, kind="stable")
    train, held_out = order[~test[order]], order[test[order]]
    if len(train) < num_tasks:
        raise ValueError(
            f"num_tasks must be at most the number of training points {len(train)}, got {num_tasks}"
        )
    blocks = np.array_split(train, num_tasks)
    ends = key[[block[-1] for block in blocks[:-1]]]
    owners = np.searchsorted(ends, key[held_out], side="left")
    for number in range(num_tasks):
        if number not in owners:
            raise ValueError(
                f"task {number + 1} of {num_tasks} has no point for evaluation: lower num_tasks or "
                "raise the share of these points"
            )
    return [(block, held_out[owners == number]) for number, block in enumerate(blocks)]


def stratified_splits(count: int, num_tasks: int, test_share: float, *, seed: int) -> list[Split]:
    """Cut sorted points into equal tasks that each have their share of points for evaluation.

    That is one at least; a task's last point is learned, so that those for evaluation lie in the
    time of what it learns.
    """
    if count < _MIN_TASK_POINTS * num_tasks:
        raise ValueError(
            f"{count:,} points cannot be cut into {num_tasks} tasks of {_MIN_TASK_POINTS} or more: "
            "lower num_tasks"
        )
    generator = np.random.default_rng(seed)
    splits: list[Split] = []
    for block in np.array_split(np.arange(count), num_tasks):
        size = round(test_share * (block[-1] + 1)) - round(test_share * block[0])
        size = min(max(size, 1), len(block) - 1)
        held_out = np.sort(generator.choice(block[:-1], size, replace=False))
        splits.append((np.setdiff1d(block, held_out), held_out))
    return splits


def standardised(
    values: NDArray[np.float64], splits: Sequence[Split], name: str = "targets"
) -> NDArray[np.float64]:
    """Return targets with mean 0 and standard deviation 1 over all points to learn."""
    learned = values[..., np.sort(np.concatenate([train for train, _ in splits]))]
    mean, std = learned.mean(-1, keepdims=True), learned.std(-1, keepdims=True)
    if (std == 0.0).any():
        raise ValueError(f"{name} are all {mean[std == 0.0][0]:g}: there is nothing to learn")
    return (values - mean) / std


def split_into_tasks(x: NDArray[Any], y: NDArray[Any], splits: Sequence[Split]) -> tuple[Task, ...]:
    """Return the tasks of inputs (n, ...) and targets (..., n)."""
    return tuple(
        Task(*map(torch.from_numpy, (x[train], y[..., train], x[test], y[..., test])))
        for train, test in splits
    )


def concatenate_tasks(tasks: Sequence[Task]) -> Task:
    """Return several tasks, one after the other, as a single one; not of channels."""
    x, y, test_x, test_y = zip(*tasks, strict=True)
    return Task(torch.cat(x), torch.cat(y, -1), torch.cat(test_x), torch.cat(test_y, -1))


def cut_channels(
    time: NDArray[np.float64],
    values: NDArray[np.float64],
    *,
    num_tasks: int,
    task_length: int | None = None,
    test_share: float,
    rng: np.random.Generator,
    standardise: bool = True,
) -> tuple[Task, ...]:
    """Cut a series of channels into tasks; times are counted in lengths of the first one.

    ``task_length`` is in time steps, later ones are left out; without it tasks are equal, and what
    is left over goes to the last. Of each task the share is for evaluation, chosen by ``rng``
    between its ends. Standardised is by what the first task learns: nothing later is known when the
    stream starts.
    """
    K, length = num_tasks, task_length or len(time) // num_tasks
    if length < _MIN_TASK_POINTS or K * length > len(time):
        wanted = task_length or f"{_MIN_TASK_POINTS} or more"
        raise ValueError(f"{len(time):,} time steps are too few for {K} tasks of {wanted}")
    origin, end = time[0], time[length - 1]
    if not end > origin:
        raise ValueError(f"the first task must take time, all its stamps are {end}")
    splits: list[Split] = []
    last = K * length if task_length else len(time)
    for start, stop in pairwise([*(k * length for k in range(K)), last]):
        count = min(max(1, round(test_share * (stop - start))), stop - start - 2)
        test = np.sort(rng.permutation(np.arange(start + 1, stop - 1))[:count])
        splits.append((np.setdiff1d(np.arange(start, stop), test), test))
    x, y = torch.from_numpy((time - origin) / (end - origin)), torch.from_numpy(values)
    if standardise:
        first = y[splits[0][0]]
        # A channel that hasn't moved yet has no scale of its own.
        std = first.std(0).nan_to_num(0.0)
        y = (y - first.mean(0)) / torch.where(std > 0.0, std, 1.0)
    return tuple(Task(x[train], y[train], x[test], y[test]) for train, test in splits)


def evaluate(
    model: OnlineGP | ExactGP, tasks: Sequence[Task], generator: torch.Generator
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return metrics on the test part of each task, and on all of them together.

    The generator draws counts, of whose likelihoods the coverage is measured (thesis Eq. 4.20).

    Returns:
        Of each and over all: `nlpd` in nats; `crps`; `rmse`, or of classes `accuracy`; with
        Gaussian noise `coverage`, the share inside intervals of 95 %; of counts `ece`.

    Raises:
        ArithmeticError: a prediction is not finite.
    """
    likelihood, whole = model.likelihood, concatenate_tasks(tasks)
    y, latent = whole.test_y, model.predict(whole.test_x)
    counts = isinstance(likelihood, Poisson | NegativeBinomial)
    with torch.no_grad():
        density = likelihood.predictive_log_prob(latent.mean, latent.variance, y)
        if not bool(density.isfinite().all()):
            raise ArithmeticError("nlpd of the predictions is not finite")
        ranked = likelihood.predictive_crps(latent.mean, latent.variance, y)
        moments = likelihood.predictive_moments(latent.mean, latent.variance)
        mean, half_width = moments.mean, _Z_95 * moments.variance.sqrt()
        samples = mean[None]
        if counts:
            noise = torch.randn(_NUM_COUNT_SAMPLES, *y.shape, dtype=y.dtype, generator=generator)
            f = latent.mean + latent.variance.clamp(min=0.0).sqrt() * noise
            samples = likelihood.sample(f, generator=generator)

    def measure(points: slice) -> dict[str, Tensor]:
        predicted, truth = mean[..., points].flatten(), y[..., points].flatten()
        values = {"nlpd": -density[..., points].mean(), "crps": ranked[..., points].mean()}
        if isinstance(likelihood, Bernoulli):
            values["accuracy"] = ((predicted > 0.5) == (truth > 0.5)).double().mean()
        else:
            values["rmse"] = rmse(predicted, truth)
        if isinstance(likelihood, GaussianNoise):
            inside = (predicted - truth).abs() < half_width[..., points].flatten()
            values["coverage"] = inside.double().mean()
        if counts:
            values["ece"] = coverage_calibration_error(samples[..., points].flatten(1), truth)
        return values

    return measure_tasks(tasks, measure)


def measure_tasks(
    tasks: Sequence[Task], measure: Callable[[slice], dict[str, Tensor]]
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return what is measured of each task's test points, and of all of them.

    What measures takes a slice of the test points of all tasks, and gives metrics by name.
    """
    ends = torch.tensor([0, *(len(task.test_x) for task in tasks)]).cumsum(0).tolist()
    slices = [*(slice(*pair) for pair in pairwise(ends)), slice(None)]
    *each, over = [{name: float(v) for name, v in measure(at).items()} for at in slices]
    return each, over


def learn(model: OnlineGP | ExactGP, task: Task, refit_steps: int | None = None) -> float:
    """Absorb a task; return what its update lost of the old knowledge, in nats.

    Hyperparameters are estimated anew in ``refit_steps`` iterations, but of the first task.
    """
    if isinstance(model, ExactGP):
        model.update(task.x, task.y)
        model.predict(task.x[-1:])  # pays for the factorisation, so that its time is counted
        return 0.0
    if refit_steps is not None and model.state is not None:
        model.fit_hyperparameters(task.x, task.y, steps=refit_steps, restarts=0)
    with warnings.catch_warnings():
        # It is returned, for every task; and metrics tell of a prior that does not suit.
        warnings.simplefilter("ignore", LostInformationWarning)
        warnings.simplefilter("ignore", PriorMismatchWarning)
        return float(model.update(task.x, task.y).lost_information.sum())


def scores(records: Sequence[Mapping[str, Any]], num_tasks: int) -> dict[str, Any]:
    """Return what a model's way through the tasks measured, as plain values.

    Each task's record has metrics on `each` task so far and `over` all of them, `seconds`, and nats
    `lost`.
    """
    over = {name: [record["over"][name] for record in records] for name in records[0]["over"]}

    def row(name: str, each: Sequence[Mapping[str, float]]) -> list[float | None]:
        return [*(metrics[name] for metrics in each), *[None] * (num_tasks - len(each))]

    return {
        "tasks": num_tasks,
        "matrix": {name: [row(name, record["each"]) for record in records] for name in over},
        "over_tasks": over,
        "seconds": [record["seconds"] for record in records],
        "lost_information": [record["lost"] for record in records],
    }


def predict_on_grid(model: OnlineGP | ExactGP, grid: Tensor | None) -> GridPrediction:
    """Return inducing points where there are any, and probabilities, or mean and deviation of y."""
    points = None
    if isinstance(model, OnlineGP) and model.state is not None and model.clock is not None:
        points = model.state.inducing.points
        if points is not None and model.of_time:
            points = points + float(model.clock.origin)
    if grid is None:
        return points, {}
    latent = model.predict(grid)
    with torch.no_grad():
        y = model.likelihood.predictive_moments(latent.mean, latent.variance)
    if isinstance(model.likelihood, Bernoulli):
        return points, {"probability": y.mean}
    return points, {"mean": y.mean, "sd": y.variance.clamp(min=0.0).sqrt()}


def curves(
    tasks: Sequence[Task], grid: Tensor | None, predictions: Sequence[GridPrediction]
) -> dict[str, Tensor]:
    """Return grid, predictions, data and, where they are points, inducing points by name.

    `ohsvgp.plots` draws them. Where early tasks have fewer inducing points than later ones, NaN
    fill the rows.
    """
    of_time = tasks[0].x.ndim == 1 or tasks[0].x.shape[1] == 1
    arrays = {} if grid is None else {"t" if of_time else "grid": grid}
    arrays |= {
        name: torch.stack([values[name] for _, values in predictions]) for name in predictions[0][1]
    }
    for role, (x, y) in {"train": (0, 1), "test": (2, 3)}.items():
        numbers = [torch.full((len(task[x]),), k) for k, task in enumerate(tasks)]
        arrays[f"{role}_{'t' if of_time else 'x'}"] = torch.cat([task[x] for task in tasks])
        arrays[f"{role}_y"] = torch.cat([task[y] for task in tasks], -1)
        arrays[f"{role}_task"] = torch.cat(numbers)
    points = [inducing for inducing, _ in predictions if inducing is not None]
    if len(points) == len(predictions):
        padded = pad_sequence(points, batch_first=True, padding_value=math.nan)
        arrays["inducing"] = padded[..., 0] if of_time else padded
    return arrays
