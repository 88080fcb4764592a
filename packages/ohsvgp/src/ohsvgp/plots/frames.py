"""Frames of a film: the truth, and what autoencoders make of it after one task and all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from probseq.figures import headline, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def frames_plot(models: Mapping[str, Mapping[str, np.ndarray]], frame: tuple[int, int]) -> "Figure":
    """Draw a test frame of each task: the truth, and two rows for what each model makes of it.

    Args:
        models: of each `truth`, `learned` (right after the task) and `last`.
        frame: height and width of a picture.
    """
    first = next(iter(models.values()))
    rows = [("truth", first["truth"])]
    for name, one in models.items():
        rows += [(f"{name}\nthen", one["learned"]), (f"{name}\nat the end", one["last"])]
    tasks = len(first["truth"])
    figure, grid = panels(len(rows) * tasks, tasks, (1.0, 1.0), extra=(1.2, 0.8))
    for place, axes in enumerate(grid):
        row, task = divmod(place, tasks)
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
