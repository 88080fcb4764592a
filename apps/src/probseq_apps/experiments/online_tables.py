"""The comparison as text: one table over methods, and one over the tasks."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from probseq_apps.report.columns import aligned_blocks

LABELS = {
    "nlpd": "NLPD ↓",
    "rmse": "RMSE ↓",
    "ece": "ECE ↓",
    "accuracy": "accuracy ↑",
}
_LEGEND = (
    "mean ± half of the 95% interval (Student's t) over the seeds. {metrics} on the test points of "
    "all tasks, after the last one; forgetting: how much worse a task before the last is predicted "
    "then than right after it was learned, mean over those tasks; lost: nats that changes of the "
    "inducing variables cost; seconds: all updates."
)
_EXPLAINED = {"ece": "ECE (coverage, thesis Eq. 4.20)"}

Rows = Sequence[Sequence[str]]


def interval_text(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean and half the width of its 95% interval, as tables show them."""
    defined = [value for value in values if value is not None]
    if not defined or len(defined) < len(values):
        return "—"
    mean = fmean(defined)
    if len(defined) == 1:
        return f"{mean:.{digits}f}"
    half = float(stats.t.ppf(0.975, len(defined) - 1)) * stdev(defined) / math.sqrt(len(defined))
    return f"{mean:.{digits}f}±{half:.{digits}f}"


def final_table(methods: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table over methods.

    Args:
        methods: from `report.json`.
    """
    first = _runs(next(iter(methods.values())))[0]
    metrics = list(first["over_tasks"])
    measure = "rmse" if "rmse" in metrics else "accuracy"
    name = LABELS[measure].split()[0]
    heads = ["method", *(LABELS[metric] for metric in metrics)]
    heads += [f"forgetting ({name}) ↓", "lost ↓", "seconds"]
    rows: list[list[str]] = []
    for method, found in methods.items():
        runs = _runs(found)
        cells = [
            interval_text([run["over_tasks"][metric][-1] for run in runs]) for metric in metrics
        ]
        cells.append(interval_text([forgotten(run["matrix"][measure], measure) for run in runs]))
        cells.append(interval_text([sum(run["lost_information"]) for run in runs], 2))
        cells.append(interval_text([sum(run["seconds"]) for run in runs]))
        rows.append([method, *cells])
    return heads, rows


def task_table(methods: Mapping[str, Any], metric: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a metric on all tasks so far, after each task.

    Args:
        methods: from `report.json`.
        metric: its name.
    """
    tasks = _runs(next(iter(methods.values())))[0]["tasks"]
    heads = [f"{LABELS[metric]} after task", *(str(k + 1) for k in range(tasks))]
    rows = [
        [
            method,
            *(
                interval_text([run["over_tasks"][metric][k] for run in _runs(found)], 2)
                for k in range(tasks)
            ),
        ]
        for method, found in methods.items()
    ]
    return heads, rows


def legend(metrics: Sequence[str]) -> str:
    """What the numbers of the tables are.

    Args:
        metrics: names of those that are shown.
    """
    names = [_EXPLAINED.get(metric, LABELS[metric].split()[0]) for metric in metrics]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return _LEGEND.format(metrics=listed)


def forgotten(matrix: Sequence[Sequence[float | None]], metric: str) -> float | None:
    """Mean forgetting over the tasks before the last; None for a single task."""
    import torch

    from probseq.metrics import forgetting

    values = torch.tensor(
        [[math.nan if cell is None else cell for cell in row] for row in matrix],
        dtype=torch.float64,
    )
    if len(values) < 2:
        return None
    return float(forgetting(values, higher_is_better=metric == "accuracy")[:-1].mean())


def terminal_text(methods: Mapping[str, Any], width: int) -> str:
    """All tables for the terminal."""
    metrics = list(_runs(next(iter(methods.values())))[0]["over_tasks"])
    tables = [final_table(methods), *(task_table(methods, metric) for metric in metrics)]
    return "\n\n".join(aligned_blocks(heads, rows, width) for heads, rows in tables)


def markdown_text(methods: Mapping[str, Any]) -> str:
    """All tables as Markdown."""
    metrics = list(_runs(next(iter(methods.values())))[0]["over_tasks"])
    tables = [final_table(methods), *(task_table(methods, metric) for metric in metrics)]
    return "\n\n".join(_markdown(heads, rows) for heads, rows in tables)


def _runs(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(found["seeds"].values())


def _markdown(heads: Sequence[str], rows: Rows) -> str:
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
