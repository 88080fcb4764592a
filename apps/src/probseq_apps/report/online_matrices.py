"""What each method still knows of each task after every later one, as matrices of numbers."""

import textwrap
from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from probseq_apps.report.figures import headline, limits, lower_is_better, metric_label, panels
from probseq_apps.report.online_results import Band, over_seeds

_ACROSS = 4
# Above this luminance, black can be read and white cannot.
_BRIGHT = 0.45


def matrix_figure(
    metric: str, methods: Mapping[str, Band], *, standardised: bool = False
) -> Figure:
    """One matrix a method: row after which task, column of which task; the colours are shared.

    Args:
        metric: its name.
        methods: matrices by method, means over the seeds.
        standardised: whether errors are in standard deviations.
    """
    tasks = max(len(band.mean) for band in methods.values())
    bounds = limits({name: band.mean for name, band in methods.items()}, {})
    shown = np.concatenate([band.mean[np.isfinite(band.mean)] for band in methods.values()])
    digits = _digits(shown, bounds.high)
    scale = _scale(metric, shown[shown <= bounds.high], digits)
    cut = bool((shown > float(scale.vmax or 0.0)).any())
    # Dark is bad.
    colours = matplotlib.colormaps["cividis_r" if lower_is_better(metric) else "cividis"]
    side = max(1.6, 0.9 + 0.26 * tasks)
    figure, found = panels(len(methods), _ACROSS, (side, side + 0.5), extra=(1.4, 1.0))
    for axes, (name, band) in zip(found, methods.items(), strict=True):
        _matrix(axes, band.mean, scale, colours, digits)
        axes.set_title(f"{textwrap.fill(name, 28)}\n{_caption(metric, band.mean)}", fontsize=9)
    ticks = range(tasks)
    found[0].set_xticks(ticks, [str(task + 1) for task in ticks], fontsize=7)
    found[0].set_yticks(ticks, [str(task + 1) for task in ticks], fontsize=7)
    bar = figure.colorbar(
        ScalarMappable(scale, colours),
        ax=found,
        extend="max" if cut else "neither",
        shrink=0.8,
        fraction=0.03,
    )
    label = metric_label(metric, standardised=standardised)
    bar.set_label(label, fontsize=10)
    figure.supxlabel("Test part of task", fontsize=10)
    figure.supylabel("After learning task", fontsize=10)
    title = f"{label}, {over_seeds(methods.values())}"
    if cut:
        title += f"; colours end at {scale.vmax:.2g}, the numbers are as they are"
    headline(figure, title, 11)
    return figure


def forgetting(metric: str, matrix: np.ndarray) -> float:
    """How much worse the earlier tasks are in the end than when they were learned, on average.

    Args:
        metric: its name; the sign is such that positive is forgetting.
        matrix: row after which task, column of which task.
    """
    change = (matrix[-1] - np.diagonal(matrix))[:-1]
    worse = float(change.mean()) if change.size else 0.0
    # No minus before zero.
    return (worse if lower_is_better(metric) else -worse) + 0.0


def _caption(metric: str, matrix: np.ndarray) -> str:
    last = float(np.nanmean(matrix[-1])) if np.isfinite(matrix[-1]).any() else float("nan")
    return f"at the end {last:.3g}\n(mean over tasks),\nforgotten {forgetting(metric, matrix):+.2g}"


def _scale(metric: str, values: np.ndarray, digits: int) -> Normalize:
    """Ends of the colours: those of the values, but apart enough for what prints alike to be alike.

    What is missing is added at the bad end, where no value is.
    """
    low, high = float(values.min()), float(values.max())
    least = 2 * 10.0**-digits
    if metric != "accuracy":
        least = max(least, 0.1 * abs(float(values.mean())))
    short = max(0.0, least - (high - low))
    return Normalize(low, high + short) if lower_is_better(metric) else Normalize(low - short, high)


def _digits(values: np.ndarray, top: float) -> int:
    """Digits after the point: two numbers of a matrix should differ, and five letters fit."""
    largest = float(np.abs(values[values <= top]).max(initial=0.0))
    return 2 if largest < 10 else 1 if largest < 100 else 0


def _matrix(
    axes: Axes,
    matrix: np.ndarray,
    scale: Normalize,
    colours: Colormap,
    digits: int,
) -> None:
    axes.imshow(matrix, cmap=colours, norm=scale, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            red, green, blue, _ = colours(scale(value))
            bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue > _BRIGHT
            text = f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0e}"
            axes.text(
                *(float(column), float(row), text),
                ha="center",
                va="center",
                fontsize=5.5 if len(matrix) > 6 else 7,
                color="black" if bright else "white",
            )
