"""How well a learner predicts the tasks so far, and the curves that show it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.likelihoods import Likelihood
from probseq import metrics
from probseq.gaussians import DiagonalGaussian
from probseq_apps.experiments.online_settings import COUNTS, LikelihoodName
from probseq_apps.experiments.online_tasks import Stream, Task

_SAMPLES = 100  # of a count, for the coverage of thesis Eq. 4.20


@runtime_checkable
class Learner(Protocol):
    """What is asked of a method."""

    @property
    def likelihood(self) -> Likelihood:
        """Observation model, which turns predictions of f into those of y."""
        ...

    def learn(self, x: Tensor, y: Tensor) -> float:
        """Absorb a task; what its updates lost of the old knowledge, in nats."""
        ...

    def latent(self, x: Tensor) -> DiagonalGaussian:
        """Posterior of f."""
        ...

    def inducing_points(self) -> Tensor | None:
        """Inducing points of shape (M, d); None where inducing variables are no points."""
        ...


def metric_names(likelihood: LikelihoodName) -> tuple[str, ...]:
    """What is measured: for counts also coverage, for classes accuracy in place of errors."""
    if likelihood == "bernoulli":
        return "nlpd", "accuracy"
    return ("nlpd", "rmse", "ece") if likelihood in COUNTS else ("nlpd", "rmse")


def evaluate(
    learner: Learner,
    tasks: Sequence[Task],
    names: Sequence[str],
    *,
    generator: torch.Generator,
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Metrics on the test part of each task, and on all of them together.

    Args:
        learner: predicts.
        tasks: learned so far.
        names: from ``metric_names``.
        generator: of the sampled counts.

    Returns:
        One set of metrics for each task, and one for all points at once.
    """
    x = torch.cat([task.test_x for task in tasks])
    y = torch.cat([task.test_y for task in tasks])
    latent = learner.latent(x)
    with torch.no_grad():
        density = learner.likelihood.predictive_log_prob(latent.mean, latent.variance, y)
        mean = learner.likelihood.predictive_moments(latent.mean, latent.variance).mean
        samples = None
        if "ece" in names:
            noise = torch.randn(_SAMPLES, len(y), dtype=y.dtype, generator=generator)
            f = latent.mean + latent.variance.clamp(min=0.0).sqrt() * noise
            samples = learner.likelihood.sample(f, generator=generator)

    def measure(part: slice) -> dict[str, float]:
        found: dict[str, Callable[[], Tensor]] = {
            "nlpd": lambda: -density[part].mean(),
            "rmse": lambda: metrics.rmse(mean[part], y[part]),
            "accuracy": lambda: ((mean[part] > 0.5) == (y[part] > 0.5)).double().mean(),
            "ece": lambda: metrics.coverage_calibration_error(_of(samples, part), y[part]),
        }
        values = {name: float(found[name]()) for name in names}
        if bad := [name for name, value in values.items() if not math.isfinite(value)]:
            raise ArithmeticError(f"{bad[0]} of the predictions is not finite")
        return values

    sizes = [len(task.test_y) for task in tasks]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    each = [measure(slice(s, s + size)) for s, size in zip(starts, sizes, strict=True)]
    return each, measure(slice(None))


def _of(samples: Tensor | None, part: slice) -> Tensor:
    if samples is None:
        raise RuntimeError("samples are drawn for the coverage only")
    return samples[:, part]


class Results:
    """What one run measured, in the form of `report.json`.

    Args:
        names: metrics.
        num_tasks: K.
    """

    def __init__(self, names: Sequence[str], num_tasks: int) -> None:
        self._names, self._num_tasks = tuple(names), num_tasks
        self._matrix: dict[str, list[list[float | None]]] = {name: [] for name in names}
        self._over: dict[str, list[float]] = {name: [] for name in names}
        self._seconds: list[float] = []
        self._lost: list[float] = []

    def add(
        self,
        each: Sequence[dict[str, float]],
        over: dict[str, float],
        *,
        seconds: float,
        lost: float,
    ) -> None:
        """Add what was measured after one more task."""
        missing = [None] * (self._num_tasks - len(each))
        for name in self._names:
            self._matrix[name].append([*(found[name] for found in each), *missing])
            self._over[name].append(over[name])
        self._seconds.append(seconds)
        self._lost.append(lost)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "tasks": self._num_tasks,
            "matrix": self._matrix,
            "over_tasks": self._over,
            "seconds": self._seconds,
            "lost_information": self._lost,
        }


class Curves:
    """Predictions on the stream's grid after each task, as arrays for plots.

    Args:
        stream: gives the grid and the data.
        likelihood: classes have probabilities, others mean and deviation of a new y.
    """

    def __init__(self, stream: Stream, likelihood: LikelihoodName) -> None:
        self._stream, self._classes = stream, likelihood == "bernoulli"
        self._means: list[Tensor] = []
        self._deviations: list[Tensor] = []
        self._inducing: list[Tensor | None] = []

    def add(self, learner: Learner) -> None:
        """Add the predictions after one more task."""
        points = learner.inducing_points()
        self._inducing.append(None if points is None else points.clone())
        if self._stream.grid is None:
            return
        latent = learner.latent(self._stream.grid)
        with torch.no_grad():
            moments = learner.likelihood.predictive_moments(latent.mean, latent.variance)
        self._means.append(moments.mean)
        self._deviations.append(moments.variance.clamp(min=0.0).sqrt())

    def arrays(self) -> dict[str, Tensor]:
        """By name: grid, predictions, data and, where they are points, inducing points.

        Where early tasks have fewer inducing points than later ones, NaN fill the rows.
        """
        stream, of_time = self._stream, self._stream.dim == 1
        x = "t" if of_time else "x"
        arrays: dict[str, Tensor] = {}
        if stream.grid is not None:
            arrays["t" if of_time else "grid"] = stream.grid
            means = torch.stack(self._means)
            if self._classes:
                arrays["probability"] = means
            else:
                arrays |= {"mean": means, "sd": torch.stack(self._deviations)}
        for part in ("train", "test"):
            prefix = "test_" if part == "test" else ""
            inputs = [getattr(task, f"{prefix}x") for task in stream.tasks]
            numbers = [torch.full((len(found),), k) for k, found in enumerate(inputs)]
            arrays[f"{part}_{x}"] = torch.cat(inputs)
            arrays[f"{part}_y"] = torch.cat([getattr(t, f"{prefix}y") for t in stream.tasks])
            arrays[f"{part}_task"] = torch.cat(numbers)
        if all(points is not None for points in self._inducing):
            arrays["inducing"] = _stacked([p for p in self._inducing if p is not None], of_time)
        return arrays


def _stacked(points: Sequence[Tensor], of_time: bool) -> Float[Tensor, "k m *d"]:
    most = max(len(found) for found in points)
    filled = torch.full((len(points), most, points[0].shape[-1]), math.nan, dtype=torch.float64)
    for row, found in zip(filled, points, strict=True):
        row[: len(found)] = found
    return filled[..., 0] if of_time else filled
