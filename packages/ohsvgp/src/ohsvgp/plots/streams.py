"""All figures of a comparison on a stream: what `ohsvgp.tasks.scores` and `curves` return."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.plots.fits import SeriesFit, after_tasks_plot, series_plot
from ohsvgp.plots.metrics import Band, Metric, metrics_plot, per_task_plot
from ohsvgp.plots.plane import Plane, boundaries_plot
from probseq.figures import headline, panels
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
    """Return the mean over seeds and half of its 95% interval by Student's t, from three on."""
    array = np.array(values, dtype=float)
    mean, count = array.mean(0), len(array)
    if count < 3:
        return Band(mean, np.full_like(mean, math.nan), count)
    error = array.std(0, ddof=1) / math.sqrt(count)
    return Band(mean, interval_factor(count) * error, count)


def metric_figures(
    methods: Mapping[str, Sequence[Mapping[str, Any]]], *, standardised: bool = False
) -> "dict[str, Figure]":
    """Draw `over-tasks`, and of each metric `per-task-METRIC`.

    Records are what ``ohsvgp.tasks.scores`` returns, for each seed of each method.
    """
    order = list(methods)

    def bands(key: str, name: str) -> dict[str, Band]:
        return {m: band([run[key][name] for run in runs]) for m, runs in methods.items()}

    metrics_by_name = _METRICS | ({"rmse": Metric("RMSE (standardised)")} if standardised else {})
    names = next(iter(methods.values()))[0]["over_tasks"]
    metrics = {name: metrics_by_name.get(name, Metric(name)) for name in names}
    over = [(metric, bands("over_tasks", name)) for name, metric in metrics.items()]
    figures = {"over-tasks": metrics_plot(over, order)}
    for name, metric in metrics.items():
        figures[f"per-task-{name}"] = per_task_plot(metric, bands("matrix", name), order)
    return figures


def prediction_figures(
    models: Mapping[str, Mapping[str, np.ndarray]], labels: tuple[str, str]
) -> "dict[str, Figure]":
    """Draw fits over time and boundaries on the plane, of the models that have any.

    Arrays are what ``ohsvgp.tasks.curves`` returns, by the model's name; of series side by side,
    the first is drawn.

    Returns:
        `boundaries`, `fits` after the last task, and of each model `fits-NAME` after each task.
    """
    planes: dict[str, Plane] = {}
    series: dict[str, SeriesFit] = {}
    for name, arrays in models.items():
        inducing = arrays.get("inducing")
        if "probability" in arrays and arrays["grid"].shape[1:] == (2,):
            data = (arrays["train_x"], arrays["train_y"], arrays["train_task"].astype(int))
            planes[name] = Plane(arrays["grid"], arrays["probability"], *data, inducing)
        elif {"t", "mean", "sd"} <= arrays.keys():
            mean, sd = (v[:, 0] if v.ndim > 2 else v for v in (arrays["mean"], arrays["sd"]))
            train, test = (_points(arrays, name) for name in ("train", "test"))
            series[name] = SeriesFit(arrays["t"], mean, sd, train, test, inducing)
    figures = {"boundaries": boundaries_plot(planes)} if planes else {}
    if series:
        tasks = len(next(iter(series.values())).mean)
        many: dict[str, Any] = {"across": 2, "size": (5.6, 1.9)} if len(series) > 3 else {}
        last = {name: (prediction, tasks - 1) for name, prediction in series.items()}
        title = f"Prediction after task {tasks}"
        figures["fits"] = series_plot(last, labels=labels, title=title, **many)
    for name, prediction in series.items():
        file = f"fits-{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}"
        title = f"{name}: prediction after each task"
        figures[file] = after_tasks_plot(prediction, labels=labels, title=title)
    return figures


def frames_plot(models: Mapping[str, Mapping[str, np.ndarray]], frame: tuple[int, int]) -> "Figure":
    """Draw a test frame of each task: the truth, and each model's after it and at last."""
    first = next(iter(models.values()))
    rows = [("truth", first["truth"])]
    for name, arrays in models.items():
        rows += [(f"{name}\nthen", arrays["learned"]), (f"{name}\nat the end", arrays["last"])]
    tasks = len(first["truth"])
    figure, grid = panels(len(rows) * tasks, tasks, (1.0, 1.0), extra=(1.2, 0.8))
    for panel, axes in enumerate(grid):
        row, task = divmod(panel, tasks)
        # One scale for all: a prediction that fades looks faded.
        axes.imshow(rows[row][1][task].reshape(frame), cmap="gray", vmin=0.0, vmax=1.0)
        axes.set_xticks([])
        axes.set_yticks([])
        if row == 0:
            axes.set_title(f"Task {task + 1}", fontsize=9)
        if task == 0:
            axes.set_ylabel(rows[row][0], fontsize=8, rotation=0, ha="right", va="center")
    headline(figure, "A test frame of each task: right after the task, and after the last", 10)
    return figure


def _points(arrays: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, ...]:
    y = np.atleast_2d(arrays[f"{name}_y"])[0]
    return arrays[f"{name}_t"], y, arrays[f"{name}_task"].astype(int)
