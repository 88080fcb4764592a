"""Pictures of `probseq generate`: samples, reconstructions and pseudo videos, as files."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from pseudovideo.corruptions import (
    CorruptionKind,
    PseudoVideoConfig,
    image_spectrum,
    prediction_errors,
)
from pseudovideo.corruptions.plots import theorem_plot

# White between two images, in their own pixels as they are drawn.
_GAP = 2
# Small images are drawn larger, at least this many pixels wide; more beside labels.
_LEAST_CELL, _LEAST_LABELLED = 64, 96
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
# Of titles in points, the width of a letter as a share of that, and the fewest letters of a line.
_TITLE_SIZE, _LETTER, _TITLE_LETTERS = 9, 0.6, 28
# A video's last frame stays for so many frames: it is the image.
_HOLD = 4
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
    _check("images", images, 4)
    canvas = _tiles(images, columns or _side(len(images)))
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
    _check("truth", truth, 4)
    for label, images in arms.items():
        if images.shape != truth.shape:
            raise ValueError(
                f"arms[{label!r}] must have the truth's shape {tuple(truth.shape)}, got "
                f"{tuple(images.shape)}"
            )
    rows = {"truth": truth, **arms}
    return _save_rows(list(rows), list(rows.values()), file, title=title)


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
    _check("videos", videos, 5)
    frames = videos.shape[1]
    heads = [str(frame) for frame in range(1, frames)] + ["image"]
    return _save_rows([""] * len(videos), list(videos), file, heads, title=title)


def save_gif(
    videos: Float[Tensor, "n T c h w"], file: Path, *, seconds_per_frame: float = 0.25
) -> Path:
    """Write videos side by side in a grid, as an animated GIF that starts again at its end.

    Args:
        videos: in -1..1, the most corrupted frame first; values beyond are clamped.
        file: the file; its folder is made.
        seconds_per_frame: of all frames but the last, which stays four times as long.

    Raises:
        ValueError: no videos, neither grey nor colour, or frames shorter than a hundredth of a
            second, GIF's unit.
    """
    _check("videos", videos, 5)
    if not seconds_per_frame >= 0.01:
        raise ValueError(f"seconds_per_frame must be at least 0.01, got {seconds_per_frame}")
    columns, grey = _side(len(videos)), videos.shape[2] == 1
    pictures = [
        Image.fromarray(_tiles(videos[:, frame], columns)) for frame in range(videos.shape[1])
    ]
    # Grey has no more than GIF's 256 colours; colours are chosen for each frame.
    palettes = [p.convert("L") if grey else p.quantize(256) for p in pictures]
    unit = round(1000 * seconds_per_frame)
    durations = [unit] * (len(palettes) - 1) + [_HOLD * unit]
    file.parent.mkdir(parents=True, exist_ok=True)
    first, *others = palettes
    first.save(file, save_all=True, append_images=others, duration=durations, loop=0)
    return file


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


def _check(name: str, values: Tensor, dimensions: int) -> None:
    if values.ndim != dimensions or 0 in values.shape or values.shape[-3] not in (1, 3):
        raise ValueError(
            f"{name} must have {dimensions} dimensions, none empty, and 1 or 3 channels, got "
            f"shape {tuple(values.shape)}"
        )


def _side(count: int) -> int:
    return int(np.ceil(np.sqrt(count)))


def _tiles(images: Tensor, columns: int, least: int = _LEAST_CELL) -> UInt8[np.ndarray, "y x 3"]:
    """Images in rows on white, small ones enlarged by a whole factor."""
    values = images.detach().float().clamp(-1, 1).add(1).mul(127.5).round().byte().cpu()
    pixels = values.expand(-1, 3, -1, -1).movedim(1, -1).numpy()
    factor = max(1, -(-least // pixels.shape[2]))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    count, height, width, _ = pixels.shape
    rows = -(-count // columns)
    canvas = np.full(
        (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), 255, np.uint8
    )
    for place, image in enumerate(pixels):
        row, column = divmod(place, columns)
        top, left = row * (height + _GAP), column * (width + _GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas


def _save_rows(
    labels: Sequence[str],
    rows: Sequence[Tensor],
    file: Path,
    heads: Sequence[str] = (),
    *,
    title: str | None = None,
) -> Path:
    """Rows of images with a label each, and heads above the columns."""
    strips = [_tiles(row, len(row), _LEAST_LABELLED) for row in rows]
    height, width, _ = strips[0].shape
    gap = np.full((_GAP, width, 3), 255, np.uint8)
    canvas = np.concatenate([part for strip in strips for part in (strip, gap)][:-1])
    figure, axes = _figure(canvas, title)
    lines = [textwrap.fill(label, _LETTERS) for label in labels]
    axes.set_yticks([(height + _GAP) * row + height / 2 for row in range(len(rows))], lines)
    cell = (width + _GAP) / len(rows[0])
    axes.set_xticks([cell * (place + 0.5) for place in range(len(heads))], list(heads))
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, file)
    return file


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
