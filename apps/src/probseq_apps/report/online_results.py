"""What `probseq online` wrote, for pictures; importable without torch."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from probseq_apps.engine.files import load_arrays

REPORT = "report.json"
PREDICTIONS = "predictions"
# Likelihoods whose targets `probseq online` standardises.
_STANDARDISED = ("gaussian", "student-t")


@dataclass(frozen=True, eq=False)
class SeedResult:
    """A method's numbers with one seed.

    Attributes:
        matrix: by metric, its value after learning task j (row) on the test part of task i
            (column); NaN above the diagonal, and where it was not defined.
        over_tasks: by metric, its value over all tasks learned so far, after each task.
        seconds: time of learning each task; empty where none was taken.
    """

    matrix: Mapping[str, Float[np.ndarray, "tasks tasks"]]
    over_tasks: Mapping[str, Float[np.ndarray, " tasks"]]
    seconds: Float[np.ndarray, " learned"]


class Band(NamedTuple):
    """Mean over the seeds and half of its 95% confidence interval.

    Attributes:
        mean: over the seeds.
        half: half length by Student's t; NaN for fewer than three seeds, of which two would have
            thirteen standard errors.
        seeds: how many there are.
    """

    mean: np.ndarray
    half: np.ndarray
    seeds: int = 1


@dataclass(frozen=True, eq=False)
class OnlineResults:
    """All methods of a run.

    Attributes:
        labels: what the inputs and the targets are.
        methods: results of each seed by method.
        standardised: whether targets, and so their errors, are in standard deviations.
    """

    labels: tuple[str, str]
    methods: Mapping[str, tuple[SeedResult, ...]]
    standardised: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that any method has, in order of appearance."""
        found = [
            metric
            for seeds in self.methods.values()
            for seed in seeds
            for metric in (*seed.over_tasks, *seed.matrix)
        ]
        return tuple(dict.fromkeys(found))

    def over_tasks(self, metric: str) -> dict[str, Band]:
        """A metric over the tasks learned so far, of the methods that have it."""
        return self._bands(lambda seed: seed.over_tasks.get(metric))

    def matrices(self, metric: str) -> dict[str, Band]:
        """A metric after each task on each task, of the methods that have it."""
        return self._bands(lambda seed: seed.matrix.get(metric))

    def seconds(self) -> dict[str, Band]:
        """Accumulated time of learning all tasks."""
        return self._bands(lambda seed: seed.seconds.sum() if seed.seconds.size else None)

    def _bands(self, value: Any) -> dict[str, Band]:
        found = {
            method: [v for v in map(value, seeds) if v is not None]
            for method, seeds in self.methods.items()
        }
        return {method: band(values) for method, values in found.items() if values}


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions after each task, of one method and seed.

    Attributes:
        seed: the seed.
        arrays: by name, as the run wrote them: `t`, `mean`, `sd`, `train_t`, `train_y`,
            `train_task`, `test_t`, `test_y`, `test_task` for series; `grid`, `probability`,
            `train_x`, `train_y`, `train_task` for the plane; `inducing` where it is defined.
    """

    seed: int
    arrays: Mapping[str, np.ndarray]

    @property
    def of_plane(self) -> bool:
        """Whether these are class probabilities on the plane."""
        grid = self.arrays.get("grid")
        return "probability" in self.arrays and grid is not None and grid.shape[1:] == (2,)

    @property
    def of_series(self) -> bool:
        """Whether these are curves over time."""
        return {"t", "mean", "sd"} <= self.arrays.keys()

    @property
    def num_tasks(self) -> int:
        """Tasks after which there are predictions."""
        return len(self.arrays["probability" if self.of_plane else "mean"])

    @property
    def train_task(self) -> Int[np.ndarray, " n"]:
        """Task of each training point, counted from 0."""
        task = self.arrays["train_task"].astype(int)
        return task - task.min()

    def inducing(self, task: int) -> np.ndarray | None:
        """Inducing locations after a task that are points of the inputs; None without any."""
        found = self.arrays.get("inducing")
        if found is None or not found.size:
            return None
        places = found[task].astype(float)
        kept = np.isfinite(places.reshape(len(places), -1)).all(1)
        return places[kept] if kept.any() else None


def load_results(folder: Path) -> OnlineResults:
    """Read `report.json` of a run of `probseq online`.

    Args:
        folder: the run folder.

    Raises:
        ValueError: the file holds something else.
        OSError: there is no such file.
    """
    file = folder / REPORT
    report = json.loads(file.read_text(encoding="utf-8"))
    try:
        methods = {
            method: tuple(_seed(seed) for seed in found["seeds"].values())
            for method, found in report["methods"].items()
        }
        data = report.get("data", {})
        standardised = _standardised(report)
        target = f"{data.get('target', 'Target')}{' (standardised)' if standardised else ''}"
        return OnlineResults((data.get("input", "Time"), target), methods, standardised)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of `probseq online`: {error!r}") from error


def load_predictions(folder: Path, methods: Sequence[str]) -> dict[str, Predictions]:
    """Predictions of each method's first seed, of the methods that kept any with a picture.

    Args:
        folder: the run folder.
        methods: their names, in the order that they shall have.
    """
    found: dict[str, Predictions] = {}
    for method in methods:
        files = {
            int(file.stem.rpartition("-seed")[2]): file
            for file in (folder / PREDICTIONS).glob(f"{method}-seed*.npz")
            if file.stem.rpartition("-seed")[0] == method
        }
        if files:
            seed = min(files)
            one = Predictions(seed, load_arrays(files[seed]))
            # Neither inputs of many dimensions nor values on a plane have a picture.
            if one.of_plane or one.of_series:
                found[method] = one
    return found


def band(values: Sequence[Any]) -> Band:
    """Mean and half of its 95% confidence interval, elementwise over the seeds.

    Args:
        values: one array or number for each seed, all of the same shape.
    """
    array = np.stack([np.asarray(value, dtype=float) for value in values])
    mean = array.mean(0)
    if len(array) < 3:
        return Band(mean, np.full_like(mean, math.nan), len(array))
    error = array.std(0, ddof=1) / math.sqrt(len(array))
    return Band(mean, float(stats.t.ppf(0.975, len(array) - 1)) * error, len(array))


def over_seeds(bands: Iterable[Band]) -> str:
    """What the numbers of several bands are: of one seed, or means over so many."""
    most = max(one.seeds for one in bands)
    return "one seed" if most == 1 else f"mean over {most} seeds"


def _standardised(report: Mapping[str, Any]) -> bool:
    # Channels tell the unit of their errors, others follow from the likelihood.
    unit = report.get("data", {}).get("unit", "")
    likelihood = report.get("settings", {}).get("model", {}).get("likelihood")
    return likelihood in _STANDARDISED or unit.startswith("standard deviations")


def _seed(raw: Mapping[str, Any]) -> SeedResult:
    return SeedResult(
        matrix={name: _array(rows) for name, rows in (raw.get("matrix") or {}).items()},
        over_tasks={name: _array(row) for name, row in (raw.get("over_tasks") or {}).items()},
        seconds=_array(raw.get("seconds") or []),
    )


def _array(values: object) -> np.ndarray:
    # None becomes NaN.
    return np.array(values, dtype=float)
