"""The picture of the errors of single frames, beside the exact ones."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probseq.figures import GUIDE, headline, light_grid, line_legend, line_style, log_axis, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FrameErrors", "frame_errors_plot"]

_TITLE = (
    "How well a frame is predicted from the true frames before it; exact: the least error for "
    "Gaussian images with the data's covariance"
)
# Error bars of models at the same frame stand so far apart.
_APART = 0.07
# Larger ratios of the largest to the smallest are shown on a logarithmic axis.
_WIDE = 10.0
_HOLLOW: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}


class FrameErrors(NamedTuple):
    """Squared errors per pixel of single frames, in thousandths."""

    length: int  # T, frames of a video; the last is the image
    frames: Sequence[int]  # the frames that are predicted, counted from 1
    model: np.ndarray  # of a model trained with several seeds, shape (seeds, frames)
    exact: np.ndarray  # least errors, shape (frames,); NaN where they are not known

    @property
    def mean(self) -> np.ndarray:
        """Means over the seeds."""
        return self.model.mean(0)

    @property
    def ratios(self) -> np.ndarray:
        """Errors as multiples of the exact ones, shape (seeds, frames)."""
        return self.model / np.where(self.exact == 0.0, np.nan, self.exact)


def frame_errors_plot(models: Mapping[str, FrameErrors]) -> "Figure":
    """Draw the errors of each frame by the model's name, a row of panels for each length of videos.

    Left the errors of models, filled, beside the exact ones, hollow and dashed; right their ratio.
    """
    lengths = sorted({curve.length for curve in models.values()})
    figure, panel_axes = panels(2 * len(lengths), 2, (4.4, 3.0), shared=False, extra=(0.3, 1.0))
    # The same colour for a model in all panels.
    styles = {name: line_style(row) for row, name in enumerate(models)}
    for row, length in enumerate(lengths):
        of_length = {name: curve for name, curve in models.items() if curve.length == length}
        left, right = panel_axes[2 * row : 2 * row + 2]
        for number, (name, curve) in enumerate(of_length.items()):
            x = np.array(curve.frames) + _APART * (number - (len(of_length) - 1) / 2)
            _draw(left, x, curve.model, styles[name])
            _draw(left, x, curve.exact[None], styles[name] | _HOLLOW)
            _draw(right, x, curve.ratios, styles[name])
        errors = np.concatenate(
            [values for curve in of_length.values() for values in (curve.mean, curve.exact)]
        )
        # An unbiased error may fall below zero.
        errors = errors[errors > 0.0] if (errors > 0.0).any() else np.ones(1)
        log_axis(left, errors.min(), errors.max())
        right.axhline(1.0, color=GUIDE, linewidth=0.9, linestyle=":")
        ratios = np.concatenate([[1.0], *(curve.ratios.mean(0) for curve in of_length.values())])
        low, high = np.nanmin(ratios), np.nanmax(ratios)
        # Models that are hardly trained are far from exact, each frame by another factor.
        if 0.0 < _WIDE * low < high:
            log_axis(right, low, high)
        _finish(left, of_length, f"Error, T = {length}", "Squared error per pixel ($10^{-3}$)")
        _finish(
            right, of_length, f"Error of the model / exact, T = {length}", "Times the exact error"
        )
    line = {"markersize": 5, "linewidth": 1.4}
    exact = {"exact, in the variant's colour": {"color": GUIDE, "marker": "o", **_HOLLOW}}
    line_legend(figure, {name: line | style for name, style in styles.items()} | exact)
    headline(figure, _TITLE, 10)
    return figure


def _draw(axes: "Axes", x: np.ndarray, values: np.ndarray, style: dict[str, Any]) -> None:
    """Draw means over the seeds with their standard errors."""
    mean, count = values.mean(0), len(values)
    if np.isnan(mean).all():
        return
    errors = values.std(0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(len(mean))
    axes.errorbar(x, mean, yerr=errors, markersize=5, linewidth=1.4, capsize=2.5, **style)


def _finish(axes: "Axes", models: Mapping[str, FrameErrors], title: str, label: str) -> None:
    frames = sorted({frame for curve in models.values() for frame in curve.frames})
    last = next(iter(models.values())).length
    axes.set_xticks(frames, ["image" if frame == last else str(frame) for frame in frames])
    axes.set_xlim(frames[0] - 0.5, frames[-1] + 0.5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("Predicted frame (number)", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    light_grid(axes)
