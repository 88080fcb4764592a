"""The picture of theorem 5.4.1: what longer contexts are worth in videos of Gaussian images."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from probseq.figures import headline, legend, light_grid, line_style, panels
from pseudovideo.corruptions import (
    CorruptionKind,
    PredictionErrors,
    PseudoVideoConfig,
    image_spectrum,
    prediction_errors,
)
from pseudovideo.plots.images import with_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["save_theorem", "theorem_plot"]

_NOISE: dict[CorruptionKind, str] = {
    "first-order-noise": "first-order noise",
    "high-order-noise": "high-order noise",
    "matched-noise": "first-order noise, matched levels",
}
# The covariance of more images has eigenvalues that take minutes.
_SPECTRUM_IMAGES = 2000
# Markers get smaller, so that equal lines are seen.
_STYLES: tuple[dict[str, Any], ...] = (
    {"linestyle": "-", "markersize": 7},
    {"linestyle": "-", "markersize": 4.5},
    {"linestyle": "--", "markersize": 3.5},
    {"linestyle": ":", "markersize": 2.5},
)

_FALL = "Fall of the squared error (%)\nagainst knowing one frame"
# Ticks of an axis of frames.
_TICKS = 8


def save_theorem(
    images: Float[Tensor, "n c h w"],
    file: Path | str,
    config: PseudoVideoConfig,
    *,
    context: int | None = None,
) -> Path:
    """Write the figure of theorem 5.4.1 for Gaussian images with the covariance of these, as PNG.

    Of at least two images the first 2,000 are taken. The config has frames and betas; the kinds of
    noise are drawn side by side. The context are the frames that a frame is generated from.
    """
    spectrum = image_spectrum(images[:_SPECTRUM_IMAGES])
    errors = {
        label: prediction_errors(spectrum, replace(config, kind=kind), context=context)
        for kind, label in _NOISE.items()
    }
    title = (
        "Theorem 5.4.1: the best predictions of noise videos of Gaussian images with this data "
        "set's covariance"
    )
    file = with_folder(file)
    theorem_plot(errors, title=title).savefig(file)
    return file


def theorem_plot(errors: Mapping[str, PredictionErrors], *, title: str | None = None) -> "Figure":
    """Draw what longer contexts are worth: exact errors of Gaussian videos, a line for each kind.

    Left: by how much the image's error falls when more of the frames next to it are known. Middle:
    the same for every frame, its context against the frame before it alone. Right: the image's
    error when the first k frames are known, as after a first window that is generated jointly.

    ``errors`` has what `prediction_errors` gives, by name, of 1 to 4 videos of equal length.
    """
    lengths = {len(of_kind.next_frame) for of_kind in errors.values()}
    if not 1 <= len(errors) <= len(_STYLES) or len(lengths) != 1:
        raise ValueError(
            f"errors must hold 1 to {len(_STYLES)} videos of equal length, got {len(errors)} "
            f"of {sorted(length + 1 for length in lengths)} frames"
        )
    steps, above = lengths.pop(), 0.6 if title is None else 1.0
    figure, (left, middle, right) = panels(3, 3, (3.6, 3.0), shared=False, extra=(0.0, above))
    if title is not None:
        headline(figure, title, 10)
    counts = range(1, steps + 1)
    _draw(
        left, errors, counts, lambda of_kind: _gain(of_kind.from_nearest, of_kind.from_nearest[0])
    )
    _finish(left, "The image, from frames next to it", "Known frames next to the image", _FALL)
    _draw(
        middle,
        errors,
        range(2, steps + 2),
        lambda of_kind: _gain(of_kind.next_frame, of_kind.next_from_previous),
    )
    _finish(middle, "Each frame, from frames before it", "Predicted frame", _FALL)
    _draw(right, errors, counts, lambda of_kind: of_kind.from_first)
    _finish(
        right, "The image, from the first frames", "Known first frames", "Squared error per pixel"
    )
    right.set_yscale("log")
    for panel in (left, right):
        panel.locator_params(axis="x", integer=True, nbins=_TICKS)
    _name_last_frame(middle, steps + 1)
    for panel in (left, middle):
        # A line of zeros gets an axis of its own size otherwise.
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]), top=max(0.1, panel.get_ylim()[1]))
    legend(figure, [left])
    return figure


def _gain(error: Tensor, reference: Tensor) -> Tensor:
    """Return by how many percent an error is below another; 0 where there is none at all."""
    return 100 * (1 - error / reference).nan_to_num(0.0)


def _draw(
    panel: "Axes",
    errors: Mapping[str, PredictionErrors],
    positions: range,
    values: Callable[[PredictionErrors], Tensor],
) -> None:
    for number, (name, of_kind) in enumerate(errors.items()):
        style = line_style(number) | _STYLES[number]
        panel.plot(positions, values(of_kind).cpu(), label=name, linewidth=1.6, **style)


def _name_last_frame(panel: "Axes", last: int) -> None:
    """Ticks of frames 2..last, of which the last is the image."""
    stride = -(-last // _TICKS)
    # A tick too close to the last one would meet its name.
    others = [frame for frame in range(2, last, stride) if last - frame >= stride]
    panel.set_xticks([*others, last], [*map(str, others), "image"])


def _finish(panel: "Axes", title: str, x_label: str, y_label: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(x_label, fontsize=9)
    panel.set_ylabel(y_label, fontsize=9)
    light_grid(panel)
