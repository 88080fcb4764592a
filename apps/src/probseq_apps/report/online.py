"""Reports of `probseq online` and `probseq online vae`: tables over methods and tasks, figures."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats

from ohsvgp.plots import (
    Band,
    Fits,
    Metric,
    Plane,
    after_tasks_plot,
    boundaries_plot,
    fits_plot,
    matrix_plot,
    metrics_plot,
    per_task_plot,
    seconds_plot,
)
from probseq.metrics import forgetting
from probseq.summary import LABELS, summarise
from probseq_apps.report.report import PAGES, Report, comparison, save_figures
from probseq_apps.report.tables import Measure, Table, with_interval

# What was measured, by method and seed, and what a run keeps for pictures, by method.
Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]
Arrays = Mapping[str, Mapping[str, np.ndarray]]
Value = Callable[[Mapping[str, Any]], float | None]

_METRICS = {
    "nlpd": Metric("NLPD (nats)"),
    "rmse": Metric("RMSE"),
    "ece": Metric("ECE", largest=1.0),
    "accuracy": Metric("Accuracy", lower_is_better=False, largest=1.0),
}
_EXPLAINED = {"ece": "ECE (coverage, thesis Eq. 4.20)"}


def online_report(
    experiment: str,
    recipe: str,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    seconds: str,
    figures: Callable[[], Mapping[str, Figure]],
    **parts: Any,
) -> Report:
    """Return the report of a comparison; `parts` are arguments of `comparison`."""
    names = [_EXPLAINED.get(metric, LABELS[metric][0]) for metric in _first(runs)["over_tasks"]]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    methods = {name: {"title": titles[name], "seeds": found} for name, found in runs.items()}
    return comparison(
        experiment,
        recipe=recipe,
        title=", ".join(runs),
        numbers={"methods": methods},
        tables=task_tables(runs),
        legend=PAGES["online"]["legend"].format(metrics=listed, seconds=seconds),
        rows=[f"`{method}`: {titles[method]}" for method in runs],
        plots=lambda folder: save_figures(figures(), folder),
        **parts,
    )


def task_tables(runs: Runs) -> list[Table]:
    """Return the table over methods, and one over the tasks for each metric."""
    first = _first(runs)
    metrics = list(first["over_tasks"])
    judge = "rmse" if "rmse" in metrics else "accuracy"

    def after(metric: str, task: int) -> Value:
        return lambda run: run["over_tasks"][metric][task]

    columns: dict[str, tuple[Value, int]] = {
        **{Measure.of(metric).head: (after(metric, -1), 3) for metric in metrics},
        f"forgetting ({LABELS[judge][0]}) ↓": (lambda run: _forgotten(run, judge), 3),
        "lost ↓": (lambda run: sum(run["lost_information"]), 2),
        "seconds": (lambda run: sum(run["seconds"]), 3),
    }
    tables = [_table("method", columns, runs)]
    for metric in metrics:
        columns = {str(task + 1): (after(metric, task), 2) for task in range(first["tasks"])}
        tables.append(_table(f"{Measure.of(metric).head} after task", columns, runs))
    return tables


def metric_figures(runs: Runs, *, standardised: bool) -> dict[str, Figure]:
    """Draw metrics over tasks, their matrices, and running times."""
    order = list(runs)

    def bands(key: str, name: str) -> dict[str, Band]:
        return {m: band([run[key][name] for run in found.values()]) for m, found in runs.items()}

    metrics = {name: _METRICS.get(name, Metric(name)) for name in _first(runs)["over_tasks"]}
    if standardised and "rmse" in metrics:
        metrics["rmse"] = Metric("RMSE (standardised)")
    over = [(metric, bands("over_tasks", name)) for name, metric in metrics.items()]
    figures = {"over-tasks": metrics_plot(over, order)}
    for name, metric in metrics.items():
        matrices = bands("matrix", name)
        figures[f"per-task-{name}"] = per_task_plot(metric, matrices, order)
        figures[f"matrix-{name}"] = matrix_plot(metric, matrices)
    totals = {
        method: float(np.mean([sum(run["seconds"]) for run in seeds.values()]))
        for method, seeds in runs.items()
    }
    if seconds := {method: value for method, value in totals.items() if value > 0.0}:
        figures["runtime"] = seconds_plot(seconds)
    return figures


def prediction_figures(arrays: Arrays, labels: tuple[str, str]) -> dict[str, Figure]:
    """Draw fits over time and boundaries on the plane, of the methods that have any."""
    figures: dict[str, Figure] = {}
    planes: dict[str, Plane] = {}
    series: dict[str, Fits] = {}
    for method, one in arrays.items():
        places = one.get("inducing")
        if "probability" in one and one["grid"].shape[1:] == (2,):
            data = (one["train_x"], one["train_y"], one["train_task"].astype(int))
            planes[method] = Plane(one["grid"], one["probability"], *data, places)
        elif {"t", "mean", "sd"} <= one.keys():
            # Of series side by side, the first.
            mean, sd = (v[:, 0] if v.ndim > 2 else v for v in (one["mean"], one["sd"]))
            train, test = (
                (
                    one[f"{part}_t"],
                    np.atleast_2d(one[f"{part}_y"])[0],
                    one[f"{part}_task"].astype(int),
                )
                for part in ("train", "test")
            )
            series[method] = Fits(one["t"], mean, sd, train, test, places)
    if planes:
        figures["boundaries"] = boundaries_plot(planes)
    if series:
        tasks = len(next(iter(series.values())).mean)
        many: dict[str, Any] = {"across": 2, "size": (5.6, 1.9)} if len(series) > 3 else {}
        last = {method: (fits, tasks - 1) for method, fits in series.items()}
        title = f"Prediction after task {tasks}"
        figures["fits"] = fits_plot(last, labels=labels, title=title, **many)
    for method, fits in series.items():
        name = f"fits-{re.sub('[^A-Za-z0-9]+', '-', method).strip('-')}"
        title = f"{method}: prediction after each task"
        figures[name] = after_tasks_plot(fits, labels=labels, title=title)
    return figures


def band(values: Sequence[Any]) -> Band:
    """Return mean and half of its 95% interval by Student's t, elementwise over the seeds.

    Two seeds have no interval worth its name, of thirteen standard errors.
    """
    array = np.array(values, dtype=float)
    mean, count = array.mean(0), len(array)
    if count < 3:
        return Band(mean, np.full_like(mean, math.nan), count)
    error = array.std(0, ddof=1) / math.sqrt(count)
    return Band(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)


def _first(runs: Runs) -> Mapping[str, Any]:
    return next(iter(next(iter(runs.values())).values()))


def _forgotten(run: Mapping[str, Any], metric: str) -> float | None:
    """Return the mean forgetting over the tasks before the last; None for a single task."""
    values = torch.from_numpy(np.array(run["matrix"][metric], dtype=float))
    if len(values) < 2:
        return None
    return float(forgetting(values, higher_is_better=metric == "accuracy")[:-1].mean())


def _table(title: str, columns: Mapping[str, tuple[Value, int]], runs: Runs) -> Table:
    rows = [
        [
            method,
            *(
                with_interval(digits)(summarise([value(run) for run in found.values()]))
                for value, digits in columns.values()
            ),
        ]
        for method, found in runs.items()
    ]
    return Table([title, *columns], rows)
