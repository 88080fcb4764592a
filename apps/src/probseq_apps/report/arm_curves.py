"""Curves and bars of comparisons of arms, as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from probseq_apps.report.arm_results import REAL, ArmGroup, Measure, Result, value_of
from probseq_apps.report.arm_tables import head_of
from probseq_apps.report.online_look import COLOURS, GUIDE, light_grid, line_style, panels
from probseq_apps.report.training_curves import Line, Quantity, curve_of, draw_lines, legend_below
from probseq_apps.training.runs import read_metrics

_ACROSS = 3
# Width of a panel of bars, height of a bar, and what titles, ticks and legend take.
_WIDTH, _BAR, _AROUND = 2.7, 0.36, 1.15
_SEED_DOT: dict[str, Any] = {"color": GUIDE, "marker": ".", "linestyle": "", "alpha": 0.6}


def save_losses(
    runs: Mapping[str, Sequence[Path]], file: Path, labels: Mapping[str, Quantity]
) -> list[Path]:
    """Write what the logs of all runs hold: a panel a number, a line an arm, mean over its seeds.

    Seeds whose logs have other steps, as those that have just begun, have lines of their own.

    Args:
        runs: folders of `fit`, those of all seeds, by arm.
        file: the file; its folder is made.
        labels: numbers of the logs by their key; those that no run has logged are left out.

    Returns:
        The file; none where no run has logged anything.
    """
    logs = {arm: [read_metrics(folder) for folder in folders] for arm, folders in runs.items()}
    curves: dict[Quantity, list[Line]] = {}
    for quantity in labels.values():
        lines = [
            Line(x, y, line_style(place))
            for place, several in enumerate(logs.values())
            for x, y in _averaged([curve_of(rows, quantity) for rows in several])
        ]
        if any(len(line.x) for line in lines):
            curves[quantity] = lines
    if not curves:
        return []
    handles = [
        Line2D((), (), label=arm, markersize=4, linewidth=1.4, **line_style(place))
        for place, arm in enumerate(logs)
    ]
    draw_lines(curves, handles, file)
    return [file]


def _averaged(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The mean of curves over the same steps; else the curves themselves."""
    steps = curves[0][0]
    if any(not np.array_equal(steps, x) for x, _ in curves):
        return list(curves)
    return [(steps, np.mean([y for _, y in curves], axis=0))]


def save_bars(
    groups: Sequence[ArmGroup], measures: Sequence[Measure], real: Result, file: Path
) -> Path:
    """Write numbers of all arms as bars with standard errors, the seeds as dots.

    Args:
        groups: the arms.
        measures: a panel each; arms that lack a number have no bar.
        real: of the test images as if they were samples, a dashed line where it has the number.
        file: the file; its folder is made.
    """
    size = (_WIDTH, _BAR * len(groups) + _AROUND)
    figure, found = panels(len(measures), _ACROSS, size, shared=False, extra=(1.9, 0.35))
    lined, dotted = False, False
    for place, (axes, measure) in enumerate(zip(found, measures, strict=True)):
        dotted |= _draw_bars(axes, groups, measure)
        level = value_of(real, measure.path[1:]) if measure.path[0] == "generation" else None
        if level is not None:
            axes.axvline(level, color=GUIDE, linestyle="--", linewidth=1.2)
            lined = True
        first = place % min(_ACROSS, len(measures)) == 0
        axes.set_yticks(range(len(groups)), [group.name if first else "" for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
    handles = [Line2D((), (), label="a seed", **_SEED_DOT)] if dotted else []
    if lined:
        handles.append(Line2D((), (), color=GUIDE, linestyle="--", linewidth=1.2, label=REAL))
    if handles:
        legend_below(figure, handles)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def _draw_bars(axes: Axes, groups: Sequence[ArmGroup], measure: Measure) -> bool:
    """A panel of bars; gives whether it has dots of seeds."""
    dotted = False
    style: dict[str, Any] = {"ecolor": GUIDE, "capsize": 3, "height": 0.66, "alpha": 0.85}
    for place, group in enumerate(groups):
        summary = group.summary(measure.path)
        if summary.mean is None:
            axes.text(
                *(0.02, place, "not measured"),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
                color="#6A6A6A",
            )
            continue
        colour = COLOURS[place % len(COLOURS)]
        axes.barh(place, summary.mean, xerr=summary.standard_error, color=colour, **style)
        if len(summary.values) > 1:
            values = np.array(summary.values, dtype=float)
            axes.plot(values, np.full(len(values), place + 0.22), **_SEED_DOT)
            dotted = True
    axes.margins(x=0.08)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(head_of(measure), fontsize=10)
    light_grid(axes)
    if measure.unit:
        axes.set_xlabel(measure.unit.strip(), fontsize=9)
    return dotted
