"""Tables of out-of-distribution detection: by set and detector, over all sets, and ranks."""

from collections.abc import Mapping
from typing import NamedTuple

from probseq_apps.report.grids import Grid, mean_of
from probseq_apps.report.labels import LABELS
from probseq_apps.report.ranks import average_ranks
from probseq_apps.report.summary import Summary

Summaries = Mapping[str, Mapping[str, Summary]]

_METRICS = ("auroc", "aupr-in", "aupr-out", "fpr95")
_RANKED = ("auroc", "aupr-out")


class _Task(NamedTuple):
    outside: str
    detector: str


def ood_grids(summaries: Summaries) -> list[Grid]:
    """For each set and each detector, AUROC, AUPR and FPR95; with several sets, means and ranks.

    The mean over the sets is that of CGPT's Table III, the average ranks over the sets are those of
    the thesis' Table 3.2, for each detector.

    Args:
        summaries: metrics by method.
    """
    tasks = _tasks(next(iter(summaries.values())))
    detectors = list(dict.fromkeys(task.detector for task in tasks))
    outsides = list(dict.fromkeys(task.outside for task in tasks))
    grids = [
        _grid(summaries, f"against {outside}, {detector}", [_Task(outside, detector)])
        for outside in outsides
        for detector in detectors
    ]
    if len(outsides) < 2:
        return grids
    for detector in detectors:
        every = [_Task(outside, detector) for outside in outsides]
        grids.append(_grid(summaries, f"mean over {len(outsides)} sets, {detector}", every))
    if len(summaries) > 1:
        grids.append(_rank_grid(summaries, detectors, outsides))
    return grids


def _tasks(metrics: Mapping[str, Summary]) -> list[_Task]:
    found: dict[_Task, None] = {}
    for name in metrics:
        if name.startswith("ood/"):
            # A folder's path has slashes of its own.
            outside, detector, _ = name.removeprefix("ood/").rsplit("/", 2)
            found[_Task(outside, detector)] = None
    return list(found)


def _grid(summaries: Summaries, title: str, tasks: list[_Task]) -> Grid:
    rows = {
        method: tuple(
            mean_of(metrics[f"ood/{task.outside}/{task.detector}/{name}"] for task in tasks)
            for name in _METRICS
        )
        for method, metrics in summaries.items()
    }
    labels = [LABELS[name] for name in _METRICS]
    return Grid(title, tuple(label for label, _ in labels), tuple(d for _, d in labels), rows)


def _rank_grid(summaries: Summaries, detectors: list[str], outsides: list[str]) -> Grid:
    columns: list[dict[str, float]] = []
    heads: list[str] = []
    for detector in detectors:
        for name in _RANKED:
            tasks = [
                {
                    method: mean
                    for method, metrics in summaries.items()
                    if (mean := metrics[f"ood/{outside}/{detector}/{name}"].mean) is not None
                }
                for outside in outsides
            ]
            columns.append(average_ranks(tasks, LABELS[name][1]))
            heads.append(f"{detector} {LABELS[name][0]}")
    rows = {method: tuple(_rank(column.get(method)) for column in columns) for method in summaries}
    title = f"average rank over {len(outsides)} sets"
    return Grid(title, tuple(heads), ("lower",) * len(heads), rows)


def _rank(value: float | None) -> Summary:
    return Summary((value,), value, None)
