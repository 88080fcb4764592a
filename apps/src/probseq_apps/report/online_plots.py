"""Pictures of runs of `probseq online` and `probseq online vae`, as PNG files."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from probseq_apps.engine.files import load_arrays
from probseq_apps.report.figures import headline, panels
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

_FRAMES = "frames"


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


def draw_vae(folder: Path, frame: tuple[int, int] | None) -> list[Path]:
    """Draw the metrics by task (thesis Figures 4.12, 4.13) and, for films, what is remembered.

    Args:
        folder: run folder with `report.json`, and `frames`.
        frame: height and width of a picture; None where the channels are none.

    Returns:
        The files, in the folder `plots` of it.
    """
    paths = draw(folder)
    if frame is not None:
        methods = list(load_results(folder).methods)
        arrays = _load_frames(folder / _FRAMES, methods)
        path = folder / "plots" / "frames.png"
        frames_figure(arrays, frame).savefig(path)
        paths.append(path)
    return paths


def frames_figure(
    methods: Mapping[str, Mapping[str, np.ndarray]], frame: tuple[int, int]
) -> Figure:
    """A test frame of each task: the truth, and what each method makes of it after the last task.

    Two rows a method: its prediction right after it learned the task, and after the last task.

    Args:
        methods: by method, `truth`, `learned` and `last`, each with one row of pixels per task.
        frame: height and width of a picture.
    """
    first = next(iter(methods.values()))
    rows = [("truth", first["truth"])]
    for name, arrays in methods.items():
        rows += [(f"{name}\nthen", arrays["learned"]), (f"{name}\nat the end", arrays["last"])]
    tasks = len(first["truth"])
    figure, found = panels(len(rows) * tasks, tasks, (1.0, 1.0), extra=(1.2, 0.8))
    for place, axes in enumerate(found):
        label, pixels = rows[place // tasks]
        task = place % tasks
        # One scale for all: a prediction that fades looks faded.
        axes.imshow(pixels[task].reshape(frame), cmap="gray", vmin=0.0, vmax=1.0)
        axes.set_xticks([])
        axes.set_yticks([])
        if place < tasks:
            axes.set_title(f"Task {task + 1}", fontsize=9)
        if task == 0:
            axes.set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center")
    headline(figure, "A test frame of each task: right after the task, and after the last", 10)
    return figure


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


def _load_frames(folder: Path, methods: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Pictures of each method's first seed."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for method in methods:
        files = {
            int(file.stem.rpartition("-seed")[2]): file
            for file in folder.glob(f"{method}-seed*.npz")
            if file.stem.rpartition("-seed")[0] == method
        }
        found[method] = load_arrays(files[min(files)])
    return found
