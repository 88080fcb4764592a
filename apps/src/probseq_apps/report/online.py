"""Reports of `probseq online` and `probseq online vae`: tables over methods and tasks, figures."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.plots import (
    Band,
    Fits,
    Metric,
    Plane,
    boundaries_plot,
    coefficients_plot,
    fits_plot,
    matrix_plot,
    metrics_plot,
    per_task_plot,
    seconds_plot,
)
from ohsvgp.plots.fits import after_tasks, tasks_layout
from probseq.kernels import RBF
from probseq.metrics import forgetting
from probseq_apps.report.report import Report
from probseq_apps.report.summary import summarise
from probseq_apps.report.tables import LABELS, Measure, Table, with_interval

if TYPE_CHECKING:
    pass

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
_LEGEND = (
    "mean ± half of the 95% interval (Student's t) over the seeds. {metrics} on the test points of "
    "all tasks, after the last one; forgetting: how much worse a task before the last is predicted "
    "then than right after it was learned, mean over those tasks; lost: nats that changes of the "
    "inducing variables cost; seconds: {seconds}."
)
_EXPLAINED = {"ece": "ECE (coverage, thesis Eq. 4.20)"}
# Six points of one task, then two of another, as in the thesis' Figure 4.1.
_TOY = (
    ([0.0, 0.8, 1.7, 2.6, 3.3, 4.0], [0.1, 0.9, 0.8, -0.2, -0.8, -0.9]),
    ([5.2, 6.0], [0.4, 1.1]),
)


def online_report(
    experiment: str,
    recipe: str,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    opening: str,
    facts: Sequence[str],
    seconds: str,
    figures: Callable[[], Mapping[str, Figure]],
) -> Report:
    """Return the report of a comparison."""
    metrics = list(_first(runs)["over_tasks"])
    names = [_EXPLAINED.get(metric, LABELS[metric][0]) for metric in metrics]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    seeds = ", ".join(map(str, settings["seeds"]))
    return Report(
        numbers={
            "experiment": experiment,
            "recipe": recipe,
            "settings": settings,
            "data": data,
            "methods": {
                method: {"title": titles[method], "seeds": dict(found)}
                for method, found in runs.items()
            },
        },
        title=f"{data['name']}: {', '.join(runs)}",
        opening=(f"{opening} Recipe `{recipe}`, seeds {seeds}; all settings are in `config.json`."),
        facts=[*data["notes"], *facts],
        tables=task_tables(runs),
        legend=_LEGEND.format(metrics=listed, seconds=seconds),
        rows=[f"`{method}`: {titles[method]}" for method in runs],
        plots=lambda folder: _saved(figures(), folder),
    )


def task_tables(runs: Runs) -> list[Table]:
    """Return the table over methods, and one over the tasks for each metric."""
    first = _first(runs)
    metrics = list(first["over_tasks"])
    judge = "rmse" if "rmse" in metrics else "accuracy"
    columns: dict[str, tuple[Value, int]] = {
        Measure.of(metric).head: (lambda run, m=metric: run["over_tasks"][m][-1], 3)
        for metric in metrics
    }
    columns |= {
        f"forgetting ({LABELS[judge][0]}) ↓": (
            lambda run: _forgotten(run, judge),
            3,
        ),
        "lost ↓": (lambda run: sum(run["lost_information"]), 2),
        "seconds": (lambda run: sum(run["seconds"]), 3),
    }
    tables = [_table("method", columns, runs)]
    for metric in metrics:
        after: dict[str, tuple[Value, int]] = {
            str(k + 1): (lambda run, m=metric, k=k: run["over_tasks"][m][k], 2)
            for k in range(first["tasks"])
        }
        tables.append(_table(f"{Measure.of(metric).head} after task", after, runs))
    return tables


def _forgotten(run: Mapping[str, Any], metric: str) -> float | None:
    """Return the mean forgetting over the tasks before the last; None for a single task."""
    values = torch.from_numpy(np.array(run["matrix"][metric], dtype=float))
    if len(values) < 2:
        return None
    return float(forgetting(values, higher_is_better=metric == "accuracy")[:-1].mean())


def metric_figures(runs: Runs, *, standardised: bool) -> dict[str, Figure]:
    """Draw metrics over tasks, their matrices, and running times."""
    order, figures = list(runs), dict[str, Figure]()

    def metric_of(name: str) -> Metric:
        found = _METRICS.get(name, Metric(name))
        own = standardised and name == "rmse"
        return found._replace(label=f"{found.label} (standardised)") if own else found

    def bands(key: str, name: str) -> dict[str, Band]:
        return {m: band([run[key][name] for run in found.values()]) for m, found in runs.items()}

    over = {name: bands("over_tasks", name) for name in _first(runs)["over_tasks"]}
    shown = [(metric_of(name), found) for name, found in over.items()]
    figures["over-tasks"] = metrics_plot(shown, order)
    for name in over:
        matrices = bands("matrix", name)
        figures[f"per-task-{name}"] = per_task_plot(metric_of(name), matrices, order)
        figures[f"matrix-{name}"] = matrix_plot(metric_of(name), matrices)
    seconds = {
        method: float(np.mean([sum(run["seconds"]) for run in seeds.values()]))
        for method, seeds in runs.items()
    }
    if seconds := {method: value for method, value in seconds.items() if value > 0.0}:
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
            train, test = (_points(one, part) for part in ("train", "test"))
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
        figures[f"fits-{re.sub('[^A-Za-z0-9]+', '-', method).strip('-')}"] = fits_plot(
            after_tasks(fits),
            labels=labels,
            title=f"{method}: prediction after each task",
            **tasks_layout(len(fits.mean)),
        )
    return figures


def toy_figure() -> Figure:
    """Draw the thesis' Figure 4.1: how the basis, q(u) and the posterior follow two small tasks."""
    one = torch.ones((), dtype=torch.float64)
    model = OnlineGP(RBF(1, lengthscale=one), Gaussian(0.01 * one), LegS(12), alpha=0.0)
    tasks = [tuple(torch.tensor(part, dtype=torch.float64) for part in task) for task in _TOY]
    return coefficients_plot(model, [(t, y) for t, y in tasks])


def band(values: Sequence[Any]) -> Band:
    """Return mean and half of its 95% interval by Student's t, elementwise over the seeds.

    Two seeds have no interval worth its name, of thirteen standard errors.
    """
    array = np.stack([np.asarray(value, dtype=float) for value in values])
    mean, count = array.mean(0), len(array)
    if count < 3:
        return Band(mean, np.full_like(mean, math.nan), count)
    error = array.std(0, ddof=1) / math.sqrt(count)
    return Band(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)


def _first(runs: Runs) -> Mapping[str, Any]:
    return next(iter(next(iter(runs.values())).values()))


def _points(one: Mapping[str, np.ndarray], part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t, y = one[f"{part}_t"], one[f"{part}_y"]
    return t, y[0] if y.ndim > 1 else y, one[f"{part}_task"].astype(int)


def _table(title: str, columns: Mapping[str, tuple[Value, int]], runs: Runs) -> Table:
    cells = [
        [
            method,
            *(
                with_interval(digits)(summarise([value(run) for run in found.values()]))
                for value, digits in columns.values()
            ),
        ]
        for method, found in runs.items()
    ]
    return Table([title, *columns], cells)


def _saved(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]
