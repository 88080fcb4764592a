"""Curves of training from the logs of runs, as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from probseq.figures import GUIDE, light_grid, line_legend, line_style, log_axis, panels
from probseq_apps.engine.log import read_metrics

_ACROSS = 3
# Smaller ratios of the largest to the smallest loss need no logarithm, whose ticks are few then.
_WIDE = 10.0
# Rows of a log up to which each has a marker.
_FEW_POINTS = 30
_STEM_LINES = ("-", "--", ":")


class Quantity(NamedTuple):
    """A panel: a number of the logs."""

    key: str  # where rows hold it
    title: str
    label: str  # of its axis, with the unit
    factor: float = 1.0  # what logged values are multiplied by
    wide: bool = False  # whether it may span powers of ten
    prior: str = ""  # kind of the priors that alone have it; empty for all runs


def save_curves(
    runs: Mapping[str, Sequence[Path]], file: Path, quantities: Sequence[Quantity]
) -> list[Path]:
    """Write what the logs of all runs hold: a panel a number, a line a run, mean over its seeds.

    Seeds whose logs have other steps, as those that have just begun, have lines of their own.

    Args:
        runs: folders of each run's seeds by `ARM`, `ARM, STEM` or `ARM, STEM, PRIOR`: a colour an
            arm, a line style a stem.
        file: the picture.
        quantities: numbers, drawn where any run has them.
    """
    names = [(*label.split(", "), "", "")[:3] for label in runs]
    logs = [[read_metrics(folder) for folder in folders] for folders in runs.values()]
    arms, stems = (list(dict.fromkeys(name[place] for name in names)) for place in (0, 1))

    def style(arm: str, stem: str) -> dict[str, Any]:
        dashes = {"linestyle": _STEM_LINES[stems.index(stem) % len(_STEM_LINES)]} if stem else {}
        return line_style(arms.index(arm)) | dashes

    curves = {
        quantity: [
            (x, y, style(arm, stem))
            for (arm, stem, prior), several in zip(names, logs, strict=True)
            if quantity.prior in ("", prior)
            for x, y in _averaged([curve_of(rows, quantity) for rows in several])
        ]
        for quantity in quantities
    }
    curves = {key: lines for key, lines in curves.items() if any(len(x) for x, *_ in lines)}
    if not curves:
        return []
    across = 2 if len(curves) == 4 else _ACROSS
    figure, found = panels(len(curves), across, (3.5, 2.7), shared=False)
    for axes, (quantity, lines) in zip(found, curves.items(), strict=True):
        for x, y, own in lines:
            (drawn,) = axes.plot(x, y, markersize=3, linewidth=1.4, **own)
            if len(x) > _FEW_POINTS:
                drawn.set_marker("")
        _finish(axes, quantity, np.concatenate([y for _, y, _ in lines]))
    line: dict[str, Any] = {"markersize": 4, "linewidth": 1.4}
    shown = {arm: line | style(arm, stems[0]) for arm in arms}
    shown |= {
        f"stem {stem}": {
            "color": GUIDE,
            "linewidth": 1.4,
            "linestyle": style(arms[0], stem)["linestyle"],
        }
        for stem in filter(None, stems)
    }
    line_legend(figure, shown)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return [file]


def curve_of(
    rows: Sequence[Mapping[str, Any]], quantity: Quantity
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of a number, where it was logged."""
    points: list[tuple[float, float]] = []
    for row in rows:
        found: Any = row
        for part in quantity.key.split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            points.append((row["step"], found))
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], quantity.factor * array[:, 1]


def _averaged(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """Return the mean of curves over the same steps; else the curves themselves."""
    steps = curves[0][0]
    if any(not np.array_equal(steps, x) for x, _ in curves):
        return curves
    return [(steps, np.mean([y for _, y in curves], axis=0))]


def _finish(axes: Axes, quantity: Quantity, values: np.ndarray) -> None:
    if quantity.wide and 0.0 < _WIDE * values.min() < values.max():
        log_axis(axes, values.min(), values.max())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.set_title(quantity.title, fontsize=10)
    axes.set_xlabel("Optimizer steps", fontsize=9)
    axes.set_ylabel(quantity.label, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    light_grid(axes)
