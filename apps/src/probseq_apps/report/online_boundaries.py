"""Class probabilities on the plane after each task, with data and inducing points."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from probseq_apps.report.figures import GUIDE, label_bottom, legend, panels
from probseq_apps.report.online_results import Predictions

# From red over yellow to blue, which all eyes tell apart.
_MAP = "RdYlBu"
_CLASSES = (("o", "#7A2A00"), ("^", "#00304F"))
_LEVELS = np.linspace(0.0, 1.0, 21)


def boundary_figure(predictions: Mapping[str, Predictions]) -> Figure:
    """Rows are methods, columns the tasks learned so far (thesis Figure 4.2).

    Args:
        predictions: by method; the probability is that of the larger label.
    """
    tasks = max(one.num_tasks for one in predictions.values())
    figure, found = panels(tasks * len(predictions), tasks, (2.5, 2.15), extra=(1.5, 0.9))
    for row, (method, one) in enumerate(predictions.items()):
        for task in range(one.num_tasks):
            axes = found[row * tasks + task]
            _draw(axes, one, task)
            if row == 0:
                axes.set_title(f"after task {task + 1}", fontsize=10)
        found[row * tasks].set_ylabel(method, fontsize=10)
        for task in range(one.num_tasks, tasks):
            found[row * tasks + task].set_visible(False)
    grids = np.concatenate([one.arrays["grid"] for one in predictions.values()])
    found[0].set_xlim(float(grids[:, 0].min()), float(grids[:, 0].max()))
    found[0].set_ylim(float(grids[:, 1].min()), float(grids[:, 1].max()))
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), _MAP), ax=found, shrink=0.7, fraction=0.03
    )
    bar.set_label("Probability of class 1", fontsize=10)
    label_bottom(found, tasks, "$x_1$")
    figure.supylabel("$x_2$", fontsize=10)
    legend(figure, found, across=3)
    return figure


def _draw(axes: Axes, one: Predictions, task: int) -> None:
    arrays, seen = one.arrays, one.train_task
    grid, probability = arrays["grid"], arrays["probability"][task]
    axes.tricontourf(
        grid[:, 0], grid[:, 1], probability, levels=_LEVELS, cmap=_MAP, alpha=0.75, zorder=0
    )
    # A constant has no boundary.
    if probability.min() < 0.5 < probability.max():
        axes.tricontour(
            grid[:, 0], grid[:, 1], probability, levels=[0.5], colors=GUIDE, linewidths=1.2
        )
    x, y = arrays["train_x"], arrays["train_y"]
    high = y == y.max()
    for chosen, (marker, colour), label in zip((~high, high), _CLASSES, "01", strict=True):
        for latest in (False, True):
            points = x[chosen & ((seen == task) if latest else (seen < task))]
            axes.plot(
                points[:, 0],
                points[:, 1],
                linestyle="none",
                marker=marker,
                markersize=3.5,
                markeredgewidth=0.6,
                markeredgecolor="white" if latest else colour,
                # Hollow where learned before.
                markerfacecolor=colour if latest else "none",
                label=f"class {label}, latest task" if latest else f"class {label}, earlier tasks",
            )
    places = one.inducing(task)
    if places is not None:
        axes.plot(
            places[:, 0],
            places[:, 1],
            linestyle="none",
            marker="+",
            markersize=6,
            markeredgewidth=1.3,
            color=GUIDE,
            label="inducing points",
        )
