"""The picture of the errors of single frames, beside the exact ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from probseq.figures import GUIDE, headline, light_grid, line_style, panels
from probseq_apps.report.figures import legend_below, log_axis
from probseq_apps.report.results import (
    Group,
    Result,
    frame_groups,
    frames_of,
    lengths_of,
)

_ERRORS_TITLE = (
    "How well a frame is predicted from the true frames before it; exact: the least error for "
    "Gaussian images with the data's covariance"
)
# Error bars of arms at the same frame stand so far apart.
_APART = 0.07
# Larger ratios of the largest to the smallest are shown on a logarithmic axis.
_WIDE = 10.0
_HOLLOW: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}


def save_frame_errors(results: Sequence[Result], file: Path) -> list[Path]:
    """Write the errors of each frame, a row for each length of videos.

    Left the errors of models, filled, beside the exact ones, hollow and dashed; right their ratio.
    """
    arms = frame_groups(results)
    lengths = lengths_of(arms)
    if not lengths:
        return []
    figure, found = panels(2 * len(lengths), 2, (4.4, 3.0), shared=False, extra=(0.3, 1.0))
    # The same colour for an arm in all panels.
    names = [arm.name for arm in arms]
    for place, frames in enumerate(lengths):
        own = [arm for arm in arms if arm.fact("frames") == frames]
        left, right = found[2 * place : 2 * place + 2]
        for number, arm in enumerate(own):
            style = line_style(names.index(arm.name))
            offset = _APART * (number - (len(own) - 1) / 2)
            _draw_errors(left, arm, offset, style)
            _draw_ratios(right, arm, offset, style)
        log_axis(left, _positive(own))
        right.axhline(1.0, color=GUIDE, linewidth=0.9, linestyle=":")
        ratios = _ratios(own)
        # Models that are hardly trained are far from exact, each frame by another factor.
        if ratios.min() > 0.0 and ratios.max() > _WIDE * ratios.min():
            log_axis(right, ratios)
        _finish(left, own, f"Error, T = {frames}", "Squared error per pixel ($10^{-3}$)")
        _finish(right, own, f"Error of the model / exact, T = {frames}", "Times the exact error")
    handles = [
        Line2D((), (), label=name, markersize=5, linewidth=1.4, **line_style(place))
        for place, name in enumerate(names)
    ]
    exact = "exact, in the arm's colour"
    handles.append(Line2D((), (), label=exact, color=GUIDE, marker="o", **_HOLLOW))
    legend_below(figure, handles)
    headline(figure, _ERRORS_TITLE, 10)
    figure.savefig(file)
    return [file]


def _draw_errors(axes: Axes, arm: Group, offset: float, style: dict[str, Any]) -> None:
    frames = frames_of(arm)
    places = np.array(frames) + offset
    for kind in ("model", "exact"):
        found = [arm.summary((kind, str(frame))) for frame in frames]
        means = np.array([summary.mean for summary in found], dtype=float)
        if np.isnan(means).all():
            continue
        errors = np.array([summary.standard_error or 0.0 for summary in found])
        _errorbars(axes, places, means, errors, style if kind == "model" else style | _HOLLOW)


def _draw_ratios(axes: Axes, arm: Group, offset: float, style: dict[str, Any]) -> None:
    frames = frames_of(arm)
    ratios: list[list[float]] = []
    for frame in frames:
        model = arm.summary(("model", str(frame))).values
        exact = arm.summary(("exact", str(frame))).mean
        ratios.append([float("nan") if v is None or not exact else v / exact for v in model])
    table = np.array(ratios)
    if np.isnan(table).all():
        return
    count = table.shape[1]
    errors = table.std(1, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(len(table))
    _errorbars(axes, np.array(frames) + offset, table.mean(1), errors, style)


def _errorbars(
    axes: Axes, x: np.ndarray, y: np.ndarray, errors: np.ndarray, style: dict[str, Any]
) -> None:
    axes.errorbar(x, y, yerr=errors, markersize=5, linewidth=1.4, capsize=2.5, **style)


def _ratios(arms: Sequence[Group]) -> np.ndarray:
    """All means that the right panel shows, and 1."""
    found = [1.0]
    for arm in arms:
        for frame in frames_of(arm):
            model = arm.summary(("model", str(frame))).mean
            exact = arm.summary(("exact", str(frame))).mean
            if model is not None and exact:
                found.append(model / exact)
    return np.array(found)


def _positive(arms: Sequence[Group]) -> np.ndarray:
    """All errors that a logarithmic axis can show; an unbiased one may fall below zero."""
    found = [
        arm.summary((kind, str(frame))).mean
        for arm in arms
        for kind in ("model", "exact")
        for frame in frames_of(arm)
    ]
    return np.array([value for value in found if value is not None and value > 0.0] or [1.0])


def _finish(axes: Axes, arms: Sequence[Group], title: str, label: str) -> None:
    frames = sorted({frame for arm in arms for frame in frames_of(arm)})
    last = arms[0].fact("frames")
    names = ["image" if frame == last else str(frame) for frame in frames]
    axes.set_xticks(frames, names)
    axes.set_xlim(frames[0] - 0.5, frames[-1] + 0.5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("Predicted frame (number)", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    light_grid(axes)
