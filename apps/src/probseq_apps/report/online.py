"""Reports of `probseq online` and `probseq online vae`: tables over methods and tasks, figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ohsvgp.plots import metric_figures
from probseq.metrics import forgetting
from probseq.summary import LABELS, summarise
from probseq_apps.report.headline import Columns, conclusion, headline_table
from probseq_apps.report.report import PAGES, Report
from probseq_apps.report.tables import Measure, Table, with_error

# What was measured, by method and seed, and for each seed of a method.
Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]
Methods = Mapping[str, Sequence[Mapping[str, Any]]]
# A column: its head, a number of a seed, and its digits.
Column = tuple[str, Callable[[Mapping[str, Any]], float | None], int]


def online_report(
    experiment: str,
    recipe: str,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    naive: tuple[str, Sequence[float]],
    standardised: bool,
    figures: Callable[[Mapping[str, str]], Mapping[str, Figure]],
    **fields: Any,
) -> Report:
    """Return the report of a comparison.

    Titles are a name in words, and behind a colon what it is. What is `naive` needs no model: its
    title, and its RMSE or accuracy in each seed. `figures` draws what there is beside metrics, from
    names in words, the best method first.
    """
    methods = {name: [*seeds.values()] for name, seeds in runs.items()}
    names = {method: titles[method].partition(":")[0] for method in runs}
    named = {names[method]: of_seeds for method, of_seeds in methods.items()}
    columns = headline_columns(named, naive)
    first = next(iter(columns.values()))
    ranked = sorted(runs, key=lambda method: first[names[method]].mean or 0.0)
    apart = [names[method] for method in runs if method == "exact"]  # it keeps all data
    return Report(
        experiment=experiment,
        recipe=recipe,
        title="online models compared",
        headline=headline_table(columns, apart),
        conclusions=[conclusion(columns, apart)],
        alert=coverage_alert(named, sum(fields["data"]["test"])),
        numbers={
            "naive": dict([naive]),
            "methods": {m: {"title": titles[m], "seeds": seeds} for m, seeds in runs.items()},
        },
        tables=task_tables(named),
        legend=PAGES["online"]["legend"],
        rows=[f"`{method}`: {titles[method]}" for method in runs],
        figures=lambda: {
            **figures({method: names[method] for method in ranked}),
            **metric_figures(named, standardised=standardised),
        },
        **fields,
    )


def headline_columns(methods: Methods, naive: tuple[str, Sequence[float]]) -> Columns:
    """Return the metrics that decide, over all tasks after the last one."""
    first = next(iter(methods.values()))[0]["over_tasks"]
    judge = "rmse" if "rmse" in first else "accuracy"
    columns = {
        Measure.of(metric): {
            name: summarise([run["over_tasks"][metric][-1] for run in runs])
            for name, runs in methods.items()
        }
        for metric in ("nlpd", judge, "coverage", "ece")
        if metric in first
    }
    columns[Measure.of(judge)][naive[0]] = summarise(naive[1])
    forgotten = {n: summarise([_forgotten(run, judge) for run in r]) for n, r in methods.items()}
    return {**columns, Measure("forgetting", "lower"): forgotten}


def coverage_alert(methods: Methods, count: int) -> str:
    """Return which methods' intervals hold far less or more of the test points than 95 %.

    That is .05 beside what so many independent points scatter by.
    """
    tolerance = 0.05 + 1.96 * (0.95 * 0.05 / count) ** 0.5
    far: dict[str, float] = {}
    for name, runs in methods.items():
        mean = summarise([run["over_tasks"].get("coverage", [None])[-1] for run in runs]).mean
        if mean is not None and abs(mean - 0.95) > tolerance:
            far[name] = mean
    held = ", ".join(f"{share:.0%} ({name})" for name, share in far.items())
    return held and (
        f"Intervals of 95% hold {held} of the test points: the noise, the kernel or the likelihood "
        "does not suit these data, and neither intervals nor NLPD can be trusted."
    )


def task_tables(methods: Methods) -> list[Table]:
    """Return the table over methods, and one over the tasks for each metric."""
    first = next(iter(methods.values()))[0]
    metrics = {metric: Measure.of(metric).head for metric in first["over_tasks"]}
    judge = "rmse" if "rmse" in metrics else "accuracy"

    def after(metric: str, task: int) -> Callable[[Mapping[str, Any]], float]:
        return lambda run: run["over_tasks"][metric][task]

    columns: list[Column] = [
        *((head, after(metric, -1), 3) for metric, head in metrics.items()),
        (f"forgetting ({LABELS[judge][0]}) ↓", lambda run: _forgotten(run, judge), 3),
        ("lost ↓", lambda run: sum(run["lost_information"]), 2),
        ("seconds", lambda run: sum(run["seconds"]), 3),
    ]
    tables = [_table("method", columns, methods)]
    for metric, head in metrics.items():
        columns = [(str(task + 1), after(metric, task), 2) for task in range(first["tasks"])]
        tables.append(_table(f"{head} after task", columns, methods))
    return tables


def _forgotten(run: Mapping[str, Any], metric: str) -> float | None:
    """Return the mean forgetting over the tasks before the last; None for a single task."""
    values = torch.from_numpy(np.array(run["matrix"][metric], dtype=float))
    if len(values) < 2:
        return None
    return float(forgetting(values, higher_is_better=metric == "accuracy")[:-1].mean())


def _table(title: str, columns: Sequence[Column], methods: Methods) -> Table:
    rows = [
        [method, *(with_error(n)(summarise([*map(value, runs)])) for _, value, n in columns)]
        for method, runs in methods.items()
    ]
    return Table([title, *(head for head, *_ in columns)], rows)
