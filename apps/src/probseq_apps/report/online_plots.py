"""Pictures of a run of `probseq online`, as PNG files."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from probseq_apps.report.online_boundaries import boundary_figure
from probseq_apps.report.online_curves import over_tasks_figure, per_task_figure, runtime_figure
from probseq_apps.report.online_fits import final_figure, tasks_figure
from probseq_apps.report.online_matrices import matrix_figure
from probseq_apps.report.online_results import (
    OnlineResults,
    Predictions,
    load_predictions,
    load_results,
)


def draw(folder: Path) -> list[Path]:
    """Draw everything that a run kept; what is missing is left out.

    Args:
        folder: run folder with `report.json`, and `predictions` where there are any.

    Returns:
        The files, in the folder `plots` of it.

    Raises:
        ValueError: `report.json` is of another experiment.
        OSError: it is not there.
    """
    results = load_results(folder)
    figures = _of_numbers(results)
    figures |= _of_predictions(load_predictions(folder, list(results.methods)), results.labels)
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    paths = [plots / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths


def _of_numbers(results: OnlineResults) -> dict[str, Figure]:
    order = list(results.methods)
    figures: dict[str, Figure] = {}
    over = {metric: results.over_tasks(metric) for metric in results.metrics}
    over = {metric: methods for metric, methods in over.items() if methods}
    if over:
        figures["over-tasks"] = over_tasks_figure(over, order, standardised=results.standardised)
    for metric in results.metrics:
        matrices = results.matrices(metric)
        if matrices:
            figures[f"per-task-{metric}"] = per_task_figure(
                metric, matrices, order, standardised=results.standardised
            )
            figures[f"matrix-{metric}"] = matrix_figure(
                metric, matrices, standardised=results.standardised
            )
    seconds = {name: band for name, band in results.seconds().items() if float(band.mean) > 0.0}
    if seconds:
        figures["runtime"] = runtime_figure(seconds)
    return figures


def _of_predictions(
    predictions: dict[str, Predictions], labels: tuple[str, str]
) -> dict[str, Figure]:
    planes = {method: one for method, one in predictions.items() if one.of_plane}
    series = {method: one for method, one in predictions.items() if one.of_series}
    figures: dict[str, Figure] = {}
    if planes:
        figures["boundaries"] = boundary_figure(planes)
    if series:
        figures["fits"] = final_figure(series, labels)
        for method, one in series.items():
            name = re.sub("[^A-Za-z0-9]+", "-", method).strip("-")
            figures[f"fits-{name}"] = tasks_figure(method, one, labels)
    return figures
