"""Figures of calibration, selective prediction and ranking.

They are built with matplotlib's object-oriented API on the Agg canvas: no window, no global state,
safe in threads. Save one with ``figure.savefig(path)``. matplotlib comes with the extra ``plots``.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probseq.errors import require
from probseq.metrics.calibration import CalibrationBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart under every common colour-blindness; yellow is left out, being
# too pale for a line on white. Past one round the dash pattern changes.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_GUIDE, _COUNTS = "#1A1A1A", "#8A8A8A"
_ACCURACY = "#56B4E9"
_OVERCONFIDENT: dict[str, Any] = {"facecolor": "#F9DDC8", "edgecolor": "#D55E00", "hatch": "////"}
_UNDERCONFIDENT: dict[str, Any] = {
    "facecolor": "#CFE8F8",
    "edgecolor": "#0072B2",
    "hatch": "\\\\\\\\",
}
_MAX_COLUMNS = 4
_DPI = 150


def reliability_diagram(bins_by_name: Mapping[str, CalibrationBins]) -> "Figure":
    """One reliability diagram a method: accuracy against confidence, and how many fall where.

    Bars are the accuracy in each bin. The hatched part is the gap to the mean confidence in that
    bin: above the bar where the method is overconfident, in its top where it is underconfident.
    The strip below each panel is the number of predictions in each bin.

    Args:
        bins_by_name: what :func:`probseq.metrics.calibration_bins` gives, by method.

    Returns:
        A figure with up to four panels a row.

    Raises:
        ValueError: no method given.
        MissingExtraError: matplotlib is not installed.
    """
    _check_any("bins_by_name", bins_by_name)
    columns = min(len(bins_by_name), _MAX_COLUMNS)
    rows = math.ceil(len(bins_by_name) / columns)
    # A single panel is widened for its legend.
    figure = _new_figure(max(2.8 * columns, 3.8) + 0.6, 3.8 * rows + 0.5)
    # One flat grid and not one a panel: the layout engine then makes all panels equal.
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=(4, 1) * rows)
    most = max(int(bins.count.max()) for bins in bins_by_name.values())
    for place, (name, bins) in enumerate(bins_by_name.items()):
        row, column = divmod(place, columns)
        upper = figure.add_subplot(grid[2 * row, column])
        lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
        _draw_reliability(upper, bins)
        _draw_counts(lower, bins, 1.05 * most)
        upper.set_title(
            f"{textwrap.fill(name, 28)}\nECE {float(bins.expected_error()):.4f}", fontsize=11
        )
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
    """Risk-coverage curves of several methods, with their areas in the legend.

    Args:
        curves: (coverage, risk) by method, from :func:`probseq.metrics.risk_coverage_curve`.

    Returns:
        A figure with one panel.

    Raises:
        ValueError: no method given.
        MissingExtraError: matplotlib is not installed.
    """
    _check_any("curves", curves)
    labels = [
        f"{name} (AURC {float(risk.double().mean()):.4f})" for name, (_, risk) in curves.items()
    ]
    figure, axes = _curve_panel(5.6, 3.7, labels)
    for line, (coverage, risk) in zip(_lines(labels), curves.values(), strict=True):
        axes.plot(_array(coverage), _array(risk), **line)
    axes.set(xlabel="Coverage (share answered)", ylabel="Risk (share of errors among them)")
    axes.set_xlim(0, 1)
    # The risk of the first few samples is all or nothing and would flatten the rest.
    top = max(float(risk[coverage >= 0.05].max()) for coverage, risk in curves.values())
    axes.set_ylim(0, min(1.15 * top, 1) or 0.01)
    _curve_legend(figure, axes, labels)
    return figure


def roc_plot(curves: Mapping[str, tuple[Tensor, Tensor]]) -> "Figure":
    """ROC curves of several methods, with their areas in the legend.

    Args:
        curves: (fpr, tpr) by method, from :func:`probseq.metrics.roc_curve`.

    Returns:
        A figure with one square panel.

    Raises:
        ValueError: no method given.
        MissingExtraError: matplotlib is not installed.
    """
    _check_any("curves", curves)
    areas = [float(torch.trapezoid(tpr.double(), fpr.double())) for fpr, tpr in curves.values()]
    labels = [f"{name} (AUROC {area:.4f})" for name, area in zip(curves, areas, strict=True)]
    figure, axes = _curve_panel(5.2, 4.9, labels)
    axes.plot((0, 1), (0, 1), color=_GUIDE, linewidth=1, linestyle=":")
    for line, (fpr, tpr) in zip(_lines(labels), curves.values(), strict=True):
        axes.plot(_array(fpr), _array(tpr), **line)
    axes.set(xlabel="False-positive rate", ylabel="True-positive rate")
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.set_aspect("equal")
    _curve_legend(figure, axes, labels)
    return figure


def _check_any(name: str, curves: Mapping[str, object]) -> None:
    if not curves:
        raise ValueError(f"{name} must hold at least one method, got an empty mapping")


def _new_figure(width: float, height: float) -> "Figure":
    figures = require("matplotlib.figure", extra="plots", distribution="probseq")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="probseq")
    figure = figures.Figure(figsize=(width, height), dpi=_DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    agg.FigureCanvasAgg(figure)
    return figure


def _array(values: Tensor) -> Any:
    return values.detach().double().cpu().numpy()


def _lines(labels: list[str]) -> list[dict[str, Any]]:
    """Label and style of each curve."""
    styles: list[dict[str, Any]] = []
    for index, label in enumerate(labels):
        repeat, colour = divmod(index, len(_PALETTE))
        dashes = _DASHES[repeat % len(_DASHES)]
        styles.append(
            {"label": label, "color": _PALETTE[colour], "linestyle": dashes, "linewidth": 1.8}
        )
    return styles


def _legend_columns(labels: list[str]) -> int:
    # Two columns of 32 letters are as wide as the panel.
    return 2 if len(labels) > 3 and max(map(len, labels)) <= 32 else 1


def _curve_panel(width: float, height: float, labels: list[str]) -> "tuple[Figure, Axes]":
    """One panel, with room for the legend below: inside it, six entries hide the curves."""
    legend_rows = math.ceil(len(labels) / _legend_columns(labels))
    figure = _new_figure(width, height + 0.2 * legend_rows)
    axes = figure.add_subplot()
    _finish(axes)
    return figure, axes


def _curve_legend(figure: "Figure", axes: "Axes", labels: list[str]) -> None:
    handles = axes.get_legend_handles_labels()[0]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        frameon=False,
        fontsize=9,
    )


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
    axes.plot((0, 1), (0, 1), color=_GUIDE, linewidth=1.2, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    _finish(axes)


def _draw_counts(axes: "Axes", bins: CalibrationBins, top: float) -> None:
    edges, count = _array(bins.edges), _array(bins.count)
    axes.bar(edges[:-1], count, edges[1:] - edges[:-1], align="edge", color=_COUNTS)
    axes.set_ylim(0, top)
    axes.locator_params(axis="y", nbins=2)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", ".25", ".5", ".75", "1"))
    _finish(axes)


def _reliability_legend(figure: "Figure", columns: int) -> None:
    # Made by hand: a panel may have no overconfident or no underconfident bin.
    lines = require("matplotlib.lines", extra="plots", distribution="probseq")
    patches = require("matplotlib.patches", extra="plots", distribution="probseq")
    handles = [
        patches.Patch(facecolor=_ACCURACY, label="Accuracy"),
        patches.Patch(**_OVERCONFIDENT, label="Overconfident"),
        patches.Patch(**_UNDERCONFIDENT, label="Underconfident"),
        lines.Line2D((), (), color=_GUIDE, linestyle="--", label="Perfect calibration"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def _finish(axes: "Axes") -> None:
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.xaxis.label.set_fontsize(10)
    axes.yaxis.label.set_fontsize(10)
