"""Figures of calibration, selective prediction and ranking, of classes and of numbers.

They are built with matplotlib's object-oriented API on the Agg canvas: no window, no global state,
safe in threads. Save one with ``figure.savefig(path)``. matplotlib comes with the extra ``plots``:
without it each raises ``MissingExtraError``, and without a method ``ValueError``.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from probseq.errors import require
from probseq.figures import (
    COLOURS,
    GUIDE,
    IN_A_PANEL,
    Curve,
    bare,
    legend,
    light_grid,
    line_style,
    new_figure,
    panels,
    small_multiples,
)
from probseq.metrics.calibration import CalibrationBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COUNTS = "#8A8A8A"
_ACCURACY = "#56B4E9"
_OVERCONFIDENT: dict[str, Any] = {"facecolor": "#F9DDC8", "edgecolor": "#D55E00", "hatch": "////"}
_UNDERCONFIDENT: dict[str, Any] = {
    "facecolor": "#CFE8F8",
    "edgecolor": "#0072B2",
    "hatch": "\\\\\\\\",
}
_MAX_COLUMNS = 2


def reliability_diagram(bins_by_name: Mapping[str, CalibrationBins]) -> "Figure":
    """Draw a reliability diagram for each method: accuracy against confidence, and counts.

    Bars are the accuracy in each bin. The hatched part is the gap to the mean confidence in that
    bin: above the bar where the method is overconfident, in its top where it is underconfident.
    The strip below each panel is the number of predictions in each bin.

    Bins are those of :func:`probseq.metrics.calibration_bins`, by method.
    """
    _check_any("bins_by_name", bins_by_name)
    columns = min(len(bins_by_name), _MAX_COLUMNS)
    rows = math.ceil(len(bins_by_name) / columns)
    # A single panel is widened for its legend.
    figure = new_figure(max(2.8 * columns, 3.8) + 0.6, 3.2 * rows + 0.7)
    # One flat grid and not one a panel: the layout engine then makes all panels equal.
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=(4, 1) * rows)
    most = max(int(bins.count.max()) for bins in bins_by_name.values())
    for position, (name, bins) in enumerate(bins_by_name.items()):
        row, column = divmod(position, columns)
        upper = figure.add_subplot(grid[2 * row, column])
        lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
        _draw_reliability(upper, bins)
        _draw_counts(lower, bins, 1.05 * most)
        upper.set_title(textwrap.fill(name, 28), fontsize=11)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("Confidence")
        if column == 0:
            upper.set_ylabel("Accuracy")
            lower.set_ylabel("Count")
        else:
            upper.tick_params(labelleft=False)
            lower.tick_params(labelleft=False)
    _reliability_legend(figure, columns=2 if columns == 1 else 4)
    return figure


def risk_coverage_plot(curves: Mapping[str, tuple[Tensor, Tensor]]) -> "Figure":
    """Draw risk-coverage curves of several methods, with their areas in the legend.

    Curves are those of :func:`probseq.metrics.risk_coverage_curve`, by method.
    """
    _check_any("curves", curves)
    areas = {n: f"AURC {float(risk.double().mean()):.4f}" for n, (_, risk) in curves.items()}
    x, y = "Coverage (share answered)", "Risk (share of errors among them)"
    # The risk of the first few samples is all or nothing and would flatten the rest.
    top = max(float(risk[coverage >= 0.05].max()) for coverage, risk in curves.values())
    limits = 0.0, min(1.15 * top, 1.0) or 0.01
    if len(curves) > IN_A_PANEL:
        captioned = {name: Curve(*xy, caption=areas[name]) for name, xy in curves.items()}
        return small_multiples(captioned, title="", x_label=x, y_label=y, y_limits=limits)
    labelled = {f"{name} ({areas[name]})": xy for name, xy in curves.items()}
    figure, axes = _panel(labelled, (5.1, 3.7))
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1), ylim=limits)
    return figure


def predicted_plot(
    predictions: Mapping[str, tuple[Tensor, Tensor, Tensor]], *, target: str = "target"
) -> "Figure":
    """Draw predictions with two standard deviations against true values, a panel a method.

    Predictions are (targets, mean, variance) by method; ``target`` names the number on the axes.
    """
    _check_any("predictions", predictions)
    figure, grid = panels(len(predictions), _MAX_COLUMNS, (2.7, 2.9))
    style: dict[str, Any] = {"color": COLOURS[0], "ecolor": "#A6CBE3", "markersize": 3}
    for (method, values), panel in zip(predictions.items(), grid, strict=True):
        truth, mean, error = map(_array, (values[0], values[1], values[2].sqrt()))
        panel.errorbar(truth, mean, yerr=2.0 * error, fmt="o", elinewidth=0.8, **style)
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        panel.plot(ends, ends, color=GUIDE, linestyle="--", linewidth=1, zorder=3)
        panel.set_title(method, fontsize=11)
        panel.set_xlabel(f"True {target}")
        light_grid(panel)
    for panel in grid[::_MAX_COLUMNS]:
        panel.set_ylabel(f"Predicted {target} ± 2 std")
    return figure


def interval_coverage_plot(curves: Mapping[str, tuple[Tensor, Tensor]]) -> "Figure":
    """Draw the share of true values inside central intervals by the intervals' probability.

    Curves are (probability, share inside) by method.
    """
    _check_any("curves", curves)
    figure, axes = _panel(curves, (5.1, 3.7), marker="o")
    axes.plot((0, 1), (0, 1), color=GUIDE, linewidth=1, linestyle="--", zorder=1.9)
    axes.set(xlabel="Probability of the interval", ylabel="True values inside", ylim=(0, 1.02))
    return figure


def selective_error_plot(
    curves: Mapping[str, tuple[Tensor, Tensor]], *, target: str = "target"
) -> "Figure":
    """Draw the mean absolute error of the predictions of least variance, by their share.

    Curves are those of :func:`probseq.metrics.selective_error` by method; ``target`` names the
    number on the axis.
    """
    _check_any("curves", curves)
    figure, axes = _panel(curves, (5.1, 3.7))
    # The error of the first few is chance and would flatten the rest.
    top = max(float(error[coverage >= 0.1].amax()) for coverage, error in curves.values())
    axes.set(xlabel="Coverage", ylabel=f"MAE of {target} among them", ylim=(0, 1.1 * top or 1.0))
    return figure


def _check_any(name: str, curves: Mapping[str, object]) -> None:
    if not curves:
        raise ValueError(f"{name} must hold at least one method, got an empty mapping")


def _array(values: Tensor) -> Any:
    return values.detach().double().cpu().numpy()


def _panel(
    curves: Mapping[str, tuple[Tensor, Tensor]],
    size: tuple[float, float],
    *,
    marker: str | None = None,
) -> "tuple[Figure, Axes]":
    """Return one panel, with room for the legend below: inside it, six entries hide curves."""
    # Rows of some 64 letters are as wide as the panel.
    across = min(3, max(1, 64 // max(map(len, curves))))
    room = 0.5 + 0.2 * math.ceil(len(curves) / across)
    figure, (axes,) = panels(1, 1, size, extra=(0.5, room))
    for position, (label, (x, y)) in enumerate(curves.items()):
        style: dict[str, Any] = line_style(position) | {"marker": marker, "markersize": 3}
        axes.plot(_array(x), _array(y), label=label, **style)
    axes.set_xlim(0, 1)
    light_grid(axes)
    legend(figure, [axes], across=across)
    return figure, axes


def _draw_reliability(axes: "Axes", bins: CalibrationBins) -> None:
    filled = _array(bins.count) > 0
    edges, confidence = _array(bins.edges), _array(bins.confidence)[filled]
    left, width = edges[:-1][filled], (edges[1:] - edges[:-1])[filled]
    accuracy = _array(bins.accuracy)[filled]
    axes.bar(left, accuracy, width, align="edge", color=_ACCURACY, edgecolor="white", linewidth=0.6)
    for gap, style in (
        (confidence > accuracy, _OVERCONFIDENT),
        (confidence < accuracy, _UNDERCONFIDENT),
    ):
        axes.bar(
            left[gap],
            (confidence - accuracy)[gap],
            width[gap],
            bottom=accuracy[gap],
            align="edge",
            linewidth=0.8,
            **style,
        )
    axes.plot((0, 1), (0, 1), color=GUIDE, linewidth=1.2, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    bare(axes)
    light_grid(axes)


def _draw_counts(axes: "Axes", bins: CalibrationBins, top: float) -> None:
    edges, count = _array(bins.edges), _array(bins.count)
    axes.bar(edges[:-1], count, edges[1:] - edges[:-1], align="edge", color=_COUNTS)
    axes.set_ylim(0, top)
    axes.locator_params(axis="y", nbins=2)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", ".25", ".5", ".75", "1"))
    bare(axes)
    light_grid(axes)


def _reliability_legend(figure: "Figure", columns: int) -> None:
    # Made by hand: a panel may have no overconfident or no underconfident bin.
    lines = require("matplotlib.lines", extra="plots", distribution="probseq")
    patches = require("matplotlib.patches", extra="plots", distribution="probseq")
    handles = [
        patches.Patch(facecolor=_ACCURACY, label="Accuracy"),
        patches.Patch(**_OVERCONFIDENT, label="Overconfident"),
        patches.Patch(**_UNDERCONFIDENT, label="Underconfident"),
        lines.Line2D((), (), color=GUIDE, linestyle="--", label="Perfect calibration"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
