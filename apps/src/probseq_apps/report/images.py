"""Pictures of `probseq generate`: samples, reconstructions and pseudo videos, as files."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from probseq.figures import headline, panels
from probseq_apps.data.images import to_unit
from pseudovideo.corruptions import (
    CorruptionKind,
    PseudoVideoConfig,
    image_spectrum,
    prediction_errors,
)
from pseudovideo.corruptions.plots import theorem_plot
from pseudovideo.plots import (
    GAP,
    LEAST_LABELLED,
    check_images,
    frame_heads,
    save_gif,
    side,
    tiles,
)

_DPI, _LETTERS = 150, 22
_NOISE: dict[CorruptionKind, str] = {
    "first-order-noise": "first-order noise",
    "high-order-noise": "high-order noise",
    "matched-noise": "first-order noise, matched levels",
}
_THEOREM = (
    "Theorem 5.4.1: the best predictions of noise videos of Gaussian images with this data set's "
    "covariance,\nwhatever corruption the run itself used"
)
# Panels of a row, inches of one, letters of its title; samples that are shown of each model.
_GRIDS_ACROSS, _GRID_PANEL, _GRID_LETTERS = 3, (2.8, 2.95), 34
GRID = 36
# A film takes about so many seconds, each picture at least and at most so many.
_FILM_SECONDS, _SHORTEST, _LONGEST = 6.0, 0.06, 0.5
# Of titles in points, the width of a letter as a share of that, and the fewest letters of a line.
_TITLE_SIZE, _LETTER, _TITLE_LETTERS = 9, 0.6, 28
# The covariance of more images has eigenvalues that take minutes.
_SPECTRUM_IMAGES = 2000


def save_sample_grid(
    images: Float[Tensor, "n c h w"],
    file: Path,
    *,
    columns: int | None = None,
    title: str | None = None,
) -> Path:
    """Write images in a grid, as PNG.

    Args:
        images: in -1..1, grey or colour; values beyond are clamped.
        file: the file; its folder is made.
        columns: images in a row; by default as many as there are rows.
        title: stands above them, such as what drew them; without one the file holds the images
            alone, pixel for pixel.

    Raises:
        ValueError: no images, or neither grey nor colour.
    """
    check_images("images", images, 4)
    canvas = tiles(images, columns or side(len(images)))
    file.parent.mkdir(parents=True, exist_ok=True)
    if title is None:
        Image.fromarray(canvas).save(file)
    else:
        figure, axes = _figure(canvas, title)
        axes.set_axis_off()
        _save(figure, file)
    return file


def save_reconstructions(
    truth: Float[Tensor, "n c h w"],
    arms: Mapping[str, Float[Tensor, "n c h w"]],
    file: Path,
    *,
    title: str | None = None,
) -> Path:
    """Write images above what each arm makes of them, as PNG.

    Args:
        truth: images in -1..1.
        arms: the same images reconstructed, by label.
        file: the file; its folder is made.
        title: stands above them, such as what all arms share.

    Raises:
        ValueError: no images, or an arm has others.
    """
    check_images("truth", truth, 4)
    for label, images in arms.items():
        if images.shape != truth.shape:
            raise ValueError(
                f"arms[{label!r}] must have the truth's shape {tuple(truth.shape)}, got "
                f"{tuple(images.shape)}"
            )
    rows = {"truth": truth, **arms}
    return save_rows(list(rows), list(rows.values()), file, title=title)


def save_pseudo_videos(
    videos: Float[Tensor, "n T c h w"], file: Path, *, title: str | None = None
) -> Path:
    """Write videos as strips, one below the other, the image on the right, as PNG.

    Args:
        videos: in -1..1; noise beyond is clamped.
        file: the file; its folder is made.
        title: stands above them, such as what drew them.

    Raises:
        ValueError: no videos, or neither grey nor colour.
    """
    check_images("videos", videos, 5)
    heads = frame_heads(videos.shape[1])
    return save_rows([""] * len(videos), list(videos), file, heads, title=title)


def save_theorem(
    images: Float[Tensor, "n c h w"],
    file: Path,
    config: PseudoVideoConfig,
    *,
    context: int | None = None,
) -> Path:
    """Write the figure of theorem 5.4.1 for Gaussian images with the covariance of these, as PNG.

    Args:
        images: in -1..1, at least two; the first 2,000 are taken.
        file: the file; its folder is made.
        config: frames and betas; the kinds of noise are drawn side by side.
        context: C, frames that a frame is generated from; all before it by default.

    Raises:
        ValueError: fewer than two images or frames.
    """
    spectrum = image_spectrum(images[:_SPECTRUM_IMAGES])
    errors = {
        label: prediction_errors(spectrum, replace(config, kind=kind), context=context)
        for kind, label in _NOISE.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    theorem_plot(errors, title=_THEOREM).savefig(file)
    return file


def save_rows(
    labels: Sequence[str],
    rows: Sequence[Tensor],
    file: Path,
    heads: Sequence[str] = (),
    *,
    title: str | None = None,
) -> Path:
    """Write rows of images with a label each, and heads above the columns, as PNG.

    Args:
        labels: of the rows.
        rows: images (n, c, h, w) in -1..1 of each row, equally many.
        file: the file; its folder is made.
        heads: above the columns; none by default.
        title: stands above all.
    """
    strips = [tiles(row, len(row), LEAST_LABELLED) for row in rows]
    height, width, _ = strips[0].shape
    gap = np.full((GAP, width, 3), 255, np.uint8)
    canvas = np.concatenate([part for strip in strips for part in (strip, gap)][:-1])
    figure, axes = _figure(canvas, title)
    lines = [textwrap.fill(label, _LETTERS) for label in labels]
    axes.set_yticks([(height + GAP) * row + height / 2 for row in range(len(rows))], lines)
    cell = (width + GAP) / len(rows[0])
    axes.set_xticks([cell * (place + 0.5) for place in range(len(heads))], list(heads))
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, file)
    return file


def save_sample_grids(
    images: Mapping[str, Float[Tensor, "n c h w"]], file: Path, *, title: str
) -> Path:
    """Write samples of several models side by side, a square grid each, as PNG.

    Args:
        images: in -1..1 by label; the first 36 of each are shown.
        file: the file; its folder is made.
        title: stands above all.

    Raises:
        ValueError: a label without images, or neither grey nor colour.
    """
    for label, own in images.items():
        check_images(f"images[{label!r}]", own, 4)
    figure, found = panels(len(images), _GRIDS_ACROSS, _GRID_PANEL, shared=False, extra=(0.2, 0.45))
    for axes, (label, own) in zip(found, images.items(), strict=True):
        shown = own[:GRID]
        axes.imshow(tiles(shown, side(len(shown))))
        axes.set_axis_off()
        axes.set_title(textwrap.fill(label, _GRID_LETTERS), fontsize=10)
    headline(figure, title, 11)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def save_process(
    frames: UInt8[Tensor, "n k t c h w"],
    done: Int64[Tensor, " k"],
    file: Path,
    *,
    name: str,
    unit: str,
) -> Path:
    """Write how samples come into being as an animated GIF: images in a grid, videos in rows.

    Args:
        frames: of n samples at k snapshots, bytes.
        done: steps or levels that were done at each snapshot.
        file: the file; its folder is made.
        name: what is shown, the first line of each caption.
        unit: of what was done, `step` or `level`.
    """
    snapshots, length = frames.shape[1:3]
    steps = done.tolist()
    return save_gif(
        rearrange(to_unit(frames), "n k t c h w -> (n t) k c h w"),
        file,
        seconds_per_frame=min(_LONGEST, max(_SHORTEST, _FILM_SECONDS / snapshots)),
        columns=length if length > 1 else None,
        captions=[f"{name}\n{unit} {number:,} of {steps[-1]:,}" for number in steps],
        heads=frame_heads(length) if length > 1 else (),
    )


def _figure(canvas: UInt8[np.ndarray, "y x 3"], title: str | None) -> tuple[Figure, Axes]:
    """A figure that a picture fills, below a title in as many lines as its width asks for."""
    height, width, _ = canvas.shape
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(canvas)
    if title is not None:
        letters = max(_TITLE_LETTERS, int(72 * width / _DPI / (_LETTER * _TITLE_SIZE)))
        axes.set_title(textwrap.fill(title, letters), fontsize=_TITLE_SIZE)
    return figure, axes


def _save(figure: Figure, file: Path) -> None:
    # The images fill the figure, and the file grows by what the labels take.
    figure.savefig(file, bbox_inches="tight", pad_inches=0.06)
