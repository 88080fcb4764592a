"""All figures of a comparison on a stream: what `ohsvgp.tasks.scores` and `curves` return."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.plots.fits import Fits, after_tasks_plot, fits_plot
from ohsvgp.plots.metrics import (
    Band,
    Metric,
    matrix_plot,
    metrics_plot,
    per_task_plot,
    seconds_plot,
)
from ohsvgp.plots.plane import Plane, boundaries_plot
from probseq.summary import interval_factor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRICS = {
    "nlpd": Metric("NLPD (nats)"),
    "crps": Metric("CRPS"),
    "rmse": Metric("RMSE"),
    "ece": Metric("ECE", largest=1.0),
    "accuracy": Metric("Accuracy", lower_is_better=False, largest=1.0),
}


def band(values: Sequence[Any]) -> Band:
    """Return mean and half of its 95% interval by Student's t, elementwise over the seeds.

    Two seeds have no interval worth its name, of thirteen standard errors.

    Args:
        values: an array, or nested lists with None for what is missing, for each seed.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    array = np.array(values, dtype=float)
    mean, count = array.mean(0), len(array)
    if count < 3:
        return Band(mean, np.full_like(mean, math.nan), count)
    error = array.std(0, ddof=1) / math.sqrt(count)
    return Band(mean, interval_factor(count) * error, count)


def metric_figures(
    methods: Mapping[str, Sequence[Mapping[str, Any]]], *, standardised: bool = False
) -> "dict[str, Figure]":
    """Draw metrics over tasks, their matrices, and running times.

    Args:
        methods: what `ohsvgp.tasks.scores` returns, for each seed of each method.
        standardised: whether errors are of standardised targets.

    Returns:
        `over-tasks`, of each metric `per-task-METRIC` and `matrix-METRIC`, and `runtime`.
    """
    order = list(methods)

    def bands(key: str, name: str) -> dict[str, Band]:
        return {m: band([one[key][name] for one in runs]) for m, runs in methods.items()}

    known = _METRICS | ({"rmse": Metric("RMSE (standardised)")} if standardised else {})
    names = next(iter(methods.values()))[0]["over_tasks"]
    metrics = {name: known.get(name, Metric(name)) for name in names}
    over = [(metric, bands("over_tasks", name)) for name, metric in metrics.items()]
    figures = {"over-tasks": metrics_plot(over, order)}
    for name, metric in metrics.items():
        matrices = bands("matrix", name)
        figures[f"per-task-{name}"] = per_task_plot(metric, matrices, order)
        figures[f"matrix-{name}"] = matrix_plot(metric, matrices)
    totals = {
        m: float(np.mean([sum(one["seconds"]) for one in runs])) for m, runs in methods.items()
    }
    if seconds := {method: total for method, total in totals.items() if total > 0.0}:
        figures["runtime"] = seconds_plot(seconds)
    return figures


def prediction_figures(
    models: Mapping[str, Mapping[str, np.ndarray]], labels: tuple[str, str]
) -> "dict[str, Figure]":
    """Draw fits over time and boundaries on the plane, of the models that have any.

    Args:
        models: what `ohsvgp.tasks.curves` returns, as arrays, by the model's name; of series side
            by side, the first is drawn.
        labels: of time and values.

    Returns:
        `boundaries`, `fits` after the last task, and of each model `fits-NAME` after each task.
    """
    planes: dict[str, Plane] = {}
    series: dict[str, Fits] = {}
    for name, one in models.items():
        places = one.get("inducing")
        if "probability" in one and one["grid"].shape[1:] == (2,):
            data = (one["train_x"], one["train_y"], one["train_task"].astype(int))
            planes[name] = Plane(one["grid"], one["probability"], *data, places)
        elif {"t", "mean", "sd"} <= one.keys():
            mean, sd = (v[:, 0] if v.ndim > 2 else v for v in (one["mean"], one["sd"]))
            train, test = (_points(one, name) for name in ("train", "test"))
            series[name] = Fits(one["t"], mean, sd, train, test, places)
    figures = {"boundaries": boundaries_plot(planes)} if planes else {}
    if series:
        tasks = len(next(iter(series.values())).mean)
        many: dict[str, Any] = {"across": 2, "size": (5.6, 1.9)} if len(series) > 3 else {}
        last = {name: (fits, tasks - 1) for name, fits in series.items()}
        title = f"Prediction after task {tasks}"
        figures["fits"] = fits_plot(last, labels=labels, title=title, **many)
    for name, fits in series.items():
        file = f"fits-{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}"
        title = f"{name}: prediction after each task"
        figures[file] = after_tasks_plot(fits, labels=labels, title=title)
    return figures


def _points(one: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y = np.atleast_2d(one[f"{name}_y"])[0]
    return one[f"{name}_t"], y, one[f"{name}_task"].astype(int)
