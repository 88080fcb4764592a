"""Reports of `probseq online` and `probseq online vae`: tables over methods and over tasks."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.report.online_plots import draw, draw_vae
from probseq_apps.report.online_toy import write_toy_figure
from probseq_apps.report.report import Report
from probseq_apps.report.summary import summarise
from probseq_apps.report.tables import LABELS, Measure, Table, with_interval

_LEGEND = (
    "mean ± half of the 95% interval (Student's t) over the seeds. {metrics} on the test points of "
    "all tasks, after the last one; forgetting: how much worse a task before the last is predicted "
    "then than right after it was learned, mean over those tasks; lost: nats that changes of the "
    "inducing variables cost; seconds: {seconds}."
)
_EXPLAINED = {"ece": "ECE (coverage, thesis Eq. 4.20)"}

# What was measured, by method and seed, as `results/*.json` hold it.
Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]


def online_report(
    folder: Path,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    facts: Sequence[str],
    recipe: str,
    toy: bool = False,
) -> Report:
    """Return the report of a comparison on a series, on the plane or on vectors.

    Args:
        folder: of the experiment, which holds `predictions`.
        runs: what was measured.
        titles: of the methods.
        settings: what was compared.
        data: its name, labels of inputs and targets, sizes of the tasks, and notes.
        facts: what one must know about the methods, a line each.
        recipe: name of the recipe that the settings came from.
        toy: also draw the thesis' figure 4.1, which has a toy series of its own.
    """
    return _task_report(
        "online",
        runs,
        titles=titles,
        settings=settings,
        data=data,
        facts=facts,
        recipe=recipe,
        opening=(
            f"{sum(data['train']):,} points in {len(data['train'])} tasks, "
            f"{sum(data['test']):,} for evaluation; input: {data['input']}, target: "
            f"{data['target']}."
        ),
        seconds="all updates",
        plots=lambda plots: [*draw(folder), *([write_toy_figure(plots)] if toy else [])],
    )


def online_vae_report(
    folder: Path,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    facts: Sequence[str],
    recipe: str,
    frame: tuple[int, int] | None,
) -> Report:
    """Return the report of a comparison of VAEs on channels or films.

    Args:
        folder: of the experiment, which holds `frames`.
        runs: what was measured.
        titles: of the methods.
        settings: what was compared.
        data: its name, number of channels, unit, sizes of the tasks, and notes.
        facts: what one must know about the methods, a line each.
        recipe: name of the recipe that the settings came from.
        frame: height and width of a picture; None where the channels are none.
    """
    return _task_report(
        "online-vae",
        runs,
        titles=titles,
        settings=settings,
        data=data,
        facts=facts,
        recipe=recipe,
        opening=(
            f"{data['channels']} channels, {sum(data['train']):,} time steps in "
            f"{len(data['train'])} tasks, {sum(data['test']):,} for evaluation; the trained models "
            "are in `models/`."
        ),
        seconds="all training",
        plots=lambda _: draw_vae(folder, frame),
    )


def task_tables(runs: Runs) -> list[Table]:
    """Return the table over methods, and one over the tasks for each metric.

    Args:
        runs: what was measured.
    """
    rows = {method: list(found.values()) for method, found in runs.items()}
    first = next(iter(rows.values()))[0]
    metrics = list(first["over_tasks"])
    judge = "rmse" if "rmse" in metrics else "accuracy"
    columns: dict[str, tuple[Callable[[Mapping[str, Any]], float | None], int]] = {
        Measure.of(metric).head: (lambda run, m=metric: run["over_tasks"][m][-1], 3)
        for metric in metrics
    }
    columns |= {
        f"forgetting ({LABELS[judge][0]}) ↓": (
            lambda run: forgotten(run["matrix"][judge], judge),
            3,
        ),
        "lost ↓": (lambda run: sum(run["lost_information"]), 2),
        "seconds": (lambda run: sum(run["seconds"]), 3),
    }
    tables = [_table("method", columns, rows)]
    for metric in metrics:
        after = {
            str(k + 1): (lambda run, m=metric, k=k: run["over_tasks"][m][k], 2)
            for k in range(first["tasks"])
        }
        tables.append(_table(f"{Measure.of(metric).head} after task", after, rows))
    return tables


def forgotten(matrix: Sequence[Sequence[float | None]], metric: str) -> float | None:
    """Return the mean forgetting over the tasks before the last; None for a single task.

    Args:
        matrix: row after which task, column of which task.
        metric: its name.
    """
    import torch

    from probseq.metrics import forgetting

    values = torch.tensor(
        [[math.nan if cell is None else cell for cell in row] for row in matrix],
        dtype=torch.float64,
    )
    if len(values) < 2:
        return None
    return float(forgetting(values, higher_is_better=metric == "accuracy")[:-1].mean())


def _task_report(
    experiment: str,
    runs: Runs,
    *,
    titles: Mapping[str, str],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    facts: Sequence[str],
    recipe: str,
    opening: str,
    seconds: str,
    plots: Callable[[Path], Sequence[Path]],
) -> Report:
    metrics = list(next(iter(next(iter(runs.values())).values()))["over_tasks"])
    names = [_EXPLAINED.get(metric, LABELS[metric][0]) for metric in metrics]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
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
        opening=(
            f"{opening} Recipe `{recipe}`, seeds {', '.join(map(str, settings['seeds']))}; all "
            "settings are in `config.json`."
        ),
        facts=[*data["notes"], *facts],
        tables=task_tables(runs),
        legend=_LEGEND.format(metrics=listed, seconds=seconds),
        rows=[f"`{method}`: {titles[method]}" for method in runs],
        plots=plots,
    )


def _table(
    title: str,
    columns: Mapping[str, tuple[Callable[[Mapping[str, Any]], float | None], int]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Table:
    """Return a table of numbers of runs, each with its digits."""
    cells = [
        [
            method,
            *(
                with_interval(digits)(summarise([value(run) for run in found]))
                for value, digits in columns.values()
            ),
        ]
        for method, found in rows.items()
    ]
    return Table([title, *columns], cells)
