"""Class probabilities on the plane after each task, with data and inducing points."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.plots.drawing import dots
from probseq.errors import require
from probseq.figures import GUIDE, label_bottom, legend, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From red over yellow to blue, which all eyes tell apart.
_MAP = "RdYlBu"
_CLASSES = (("o", "#7A2A00"), ("^", "#00304F"))
_LEVELS = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True, eq=False)
class Plane:
    """Probabilities of the larger label after each of K tasks, and the points; numpy arrays."""

    grid: np.ndarray  # where they are, shape (g, 2)
    probability: np.ndarray  # shape (K, g)
    x: np.ndarray  # points that are learned, shape (n, 2)
    y: np.ndarray  # their labels, shape (n,)
    task: np.ndarray  # their tasks, counted from 0
    # inducing points after each task, shape (K, M, 2), where NaN are none
    inducing: np.ndarray | None = None


def boundaries_plot(planes: Mapping[str, Plane]) -> "Figure":
    """Draw a row for each model and a column for each task (thesis Figure 4.2)."""
    colors = require("matplotlib.colors", extra="plots", distribution="ohsvgp")
    tasks = max(len(plane.probability) for plane in planes.values())
    figure, grid = panels(tasks * len(planes), tasks, (2.5, 2.15), extra=(1.5, 0.9))
    for row, (name, plane) in enumerate(planes.items()):
        for task, axes in enumerate(grid[row * tasks : (row + 1) * tasks]):
            if task < len(plane.probability):
                _draw(axes, plane, task)
            axes.set_visible(task < len(plane.probability))
            if row == 0:
                axes.set_title(f"after task {task + 1}", fontsize=10)
        grid[row * tasks].set_ylabel(name, fontsize=10)
    points = np.concatenate([plane.grid for plane in planes.values()])
    (left, bottom), (right, top) = points.min(0).tolist(), points.max(0).tolist()
    grid[0].set_xlim(left, right)
    grid[0].set_ylim(bottom, top)
    scale = colors.Normalize(0.0, 1.0)
    colours = require("matplotlib.cm", extra="plots", distribution="ohsvgp")
    bar = figure.colorbar(colours.ScalarMappable(scale, _MAP), ax=grid, fraction=0.03, shrink=0.7)
    bar.set_label("Probability of class 1", fontsize=10)
    label_bottom(grid, tasks, "$x_1$")
    figure.supylabel("$x_2$", fontsize=10)
    legend(figure, grid, across=3)
    return figure


def _draw(axes: "Axes", plane: Plane, task: int) -> None:
    x, y = plane.grid.T
    probability = plane.probability[task]
    axes.tricontourf(x, y, probability, levels=_LEVELS, cmap=_MAP, alpha=0.75, zorder=0)
    # A constant has no boundary.
    if probability.min() < 0.5 < probability.max():
        axes.tricontour(x, y, probability, levels=[0.5], colors=GUIDE, linewidths=1.2)
    high = plane.y == plane.y.max()
    for chosen, (marker, colour), label in zip((~high, high), _CLASSES, "01", strict=True):
        for latest in (False, True):
            points = plane.x[chosen & ((plane.task == task) if latest else (plane.task < task))]
            dots(
                axes,
                points[:, 0],
                points[:, 1],
                marker,
                3.5,
                markeredgewidth=0.6,
                markeredgecolor="white" if latest else colour,
                # Hollow where learned before.
                markerfacecolor=colour if latest else "none",
                label=f"class {label}, latest task" if latest else f"class {label}, earlier tasks",
            )
    if plane.inducing is not None:
        style: dict[str, Any] = {"markeredgewidth": 1.3, "color": GUIDE}
        z1, z2 = plane.inducing[task].T
        dots(axes, z1, z2, "+", 6.0, label="inducing points", **style)
