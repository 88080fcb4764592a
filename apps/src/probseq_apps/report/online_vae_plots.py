"""Pictures of a run of `probseq online vae`, as PNG files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from probseq_apps.report.online_look import headline, panels
from probseq_apps.report.online_plots import draw
from probseq_apps.report.online_results import load_results

_FRAMES = "frames"


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
        arrays = _load(folder / _FRAMES, methods)
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


def _load(folder: Path, methods: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Pictures of each method's first seed."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for method in methods:
        files = {
            int(file.stem.rpartition("-seed")[2]): file
            for file in folder.glob(f"{method}-seed*.npz")
            if file.stem.rpartition("-seed")[0] == method
        }
        with np.load(files[min(files)], allow_pickle=False) as arrays:
            found[method] = dict(arrays)
    return found
