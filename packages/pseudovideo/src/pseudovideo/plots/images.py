"""Pictures of images and videos: grids, labelled rows and films.

Images are in -1..1; values beyond are clamped.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from probseq.errors import require
from probseq.figures import headline, panels
from probseq.files import named
from pseudovideo.pixels import to_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

# Between two images: pixels as they are drawn, of a grey that neither black nor white runs into.
GAP, BETWEEN = 2, 112
# Small images are drawn larger, at least this many pixels wide; more beside labels.
LEAST_CELL, LEAST_LABELLED = 64, 96
# Milliseconds of a film's frame, and of its last, the result.
_FRAME, _LAST = 250, 1000
# Least points of letters, which are larger on wide pictures so that a telephone shows them; the
# width of a letter as a share of that, the fewest letters of a title's line, those of a label.
_DPI, _LEAST_SIZE, _SIZES_ACROSS, _LETTER = 150, 8.0, 75, 0.6
_TITLE_LETTERS, _LABEL_LETTERS = 28, 22
# Of letters on no ground, to be read on white and on black.
_INK = "#7C7C7C"
# Samples of several models: grids of a row, inches of one, letters of its title.
_GRIDS_ACROSS, _GRID_PANEL, _GRID_LETTERS = 3, (2.8, 2.95), 34


def check_images(name: str, values: Tensor, dimensions: int) -> None:
    """Refuse another number of dimensions, an empty one, and what is neither grey nor colour."""
    if values.ndim != dimensions or 0 in values.shape or values.shape[-3] not in (1, 3):
        raise ValueError(
            f"{name} must have {dimensions} dimensions, none empty, and 1 or 3 channels, got "
            f"shape {tuple(values.shape)}"
        )


def with_folder(file: Path | str) -> Path:
    """Return the path of a file, whose folder is made."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def side(count: int) -> int:
    """Return how many images are in a row of a grid with as many rows."""
    return int(np.ceil(np.sqrt(count)))


def tiles(images: Tensor, columns: int, least: int = LEAST_CELL) -> UInt8[np.ndarray, "y x 3"]:
    """Return images in rows, grey between them, small ones enlarged by a whole factor (bicubic).

    They are in -1..1, values beyond are clamped, and at least `least` pixels wide.
    """
    values = images.detach().float().clamp(-1, 1)
    factor = max(1, -(-least // values.shape[3]))
    if factor > 1:
        values = F.interpolate(values, scale_factor=factor, mode="bicubic")
    pixels = to_bytes(values).expand(-1, 3, -1, -1).movedim(1, -1).numpy()
    count, height, width, _ = pixels.shape
    rows = -(-count // columns)
    shape = (rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    canvas = np.full(shape, BETWEEN, np.uint8)
    for number, image in enumerate(pixels):
        row, column = divmod(number, columns)
        top, left = row * (height + GAP), column * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas


def frame_heads(count: int) -> list[str]:
    """Return heads of a video's frames: "1", "2", …, and "image" for the last."""
    return [*map(str, range(1, count)), "image"]


def save_gif(videos: Float[Tensor, "n T c h w"], file: Path | str) -> Path:
    """Write videos in a grid, the first frame first, as an animated GIF that starts again."""
    check_images("videos", videos, 5)
    across = side(len(videos))
    pictures = [_picture(tiles(frames, across)) for frames in videos.unbind(1)]
    # Grey has no more than GIF's 256 colours; colours are chosen for each frame.
    grey = videos.shape[2] == 1
    first, *others = (p.convert("L") if grey else p.quantize(256) for p in pictures)
    durations = [_FRAME] * len(others) + [_LAST]
    file = with_folder(file)
    first.save(file, save_all=True, append_images=others, duration=durations, loop=0)
    return file


def save_pngs(images: UInt8[Tensor, "n c h w"], folder: Path | str) -> list[Path]:
    """Write each image, bytes, as a PNG of its own at its own size: `00000.png` and so on."""
    check_images("images", images, 4)
    files = [with_folder(Path(folder) / f"{number:05d}.png") for number in range(len(images))]
    for image, file in zip(images.cpu().movedim(1, -1).numpy(), files, strict=True):
        with named(file):
            _picture(image[..., 0] if image.shape[-1] == 1 else image).save(file)
    return files


def save_grid(
    images: Float[Tensor, "n c h w"], file: Path | str, *, title: str | None = None
) -> Path:
    """Write images in a grid with as many rows as columns, as PNG.

    Without a title the file holds the images alone, pixel for pixel.
    """
    check_images("images", images, 4)
    canvas, file = tiles(images, side(len(images))), with_folder(file)
    if title is None:
        _picture(canvas).save(file)
    else:
        figure, axes = _filled(canvas, title)
        axes.set_axis_off()
        _save(figure, file)
    return file


def save_grids(
    grids: Mapping[str, Float[Tensor, "_ c h w"]], file: Path | str, *, title: str
) -> Path:
    """Write grids of images side by side below their titles, such as samples of several models."""
    size, extra = _GRID_PANEL, (0.2, 0.45)
    figure, panel_axes = panels(len(grids), _GRIDS_ACROSS, size, shared=False, extra=extra)
    for axes, (label, images) in zip(panel_axes, grids.items(), strict=True):
        check_images(label, images, 4)
        axes.imshow(tiles(images, side(len(images))))
        axes.set_axis_off()
        axes.set_title(textwrap.fill(label, _GRID_LETTERS), fontsize=10)
    headline(figure, title, 11)
    file = with_folder(file)
    _save(figure, file)
    return file


def save_rows(
    labels: Sequence[str],
    rows: Sequence[Tensor],
    file: Path | str,
    heads: Sequence[str] = (),
    *,
    title: str | None = None,
) -> Path:
    """Write rows of equally many images (n, c, h, w), a label beside each row, as PNG.

    Heads stand above the columns, the title above all; the folder of the file is made.
    """
    for label, row in zip(labels, rows, strict=True):
        check_images(f"row {label!r}", row, 4)
        if row.shape != rows[0].shape:
            raise ValueError(
                f"row {label!r} must have the first row's shape {tuple(rows[0].shape)}, got "
                f"{tuple(row.shape)}"
            )
    strips = [tiles(row, len(row), LEAST_LABELLED) for row in rows]
    height, width, _ = strips[0].shape
    gap = np.full((GAP, width, 3), 255, np.uint8)
    canvas = np.concatenate([piece for strip in strips for piece in (strip, gap)][:-1])
    figure, axes = _filled(canvas, title)
    lines = [textwrap.fill(label, _LABEL_LETTERS) for label in labels]
    axes.set_yticks([(height + GAP) * row + height / 2 for row in range(len(rows))], lines)
    cell = (width + GAP) / len(rows[0])
    axes.set_xticks([cell * (column + 0.5) for column in range(len(heads))], list(heads))
    axes.tick_params(length=0, labelsize=_size(width), labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    file = with_folder(file)
    _save(figure, file)
    return file


def _picture(pixels: np.ndarray) -> "Image.Image":
    return require("PIL.Image", extra="plots", distribution="pseudovideo").fromarray(pixels)


def _filled(canvas: UInt8[np.ndarray, "y x 3"], title: str | None) -> "tuple[Figure, Axes]":
    """Return a figure that a picture fills, below a title in as many lines as it asks for."""
    height, width, _ = canvas.shape
    figures = require("matplotlib.figure", extra="plots", distribution="pseudovideo")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="pseudovideo")
    figure = figures.Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    agg.FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(canvas)
    if title is not None:
        letters = max(_TITLE_LETTERS, int(72 * width / _DPI / (_LETTER * _size(width))))
        axes.set_title(textwrap.fill(title, letters), fontsize=_size(width))
    return figure, axes


def _size(width: int) -> float:
    """Return the points of letters beside a picture that is so many pixels wide."""
    return max(_LEAST_SIZE, width / _SIZES_ACROSS)


def _save(figure: "Figure", file: Path) -> None:
    for text in figure.findobj(lambda artist: hasattr(artist, "set_fontsize")):
        text.set_color(_INK)
    # The images fill the figure, and the file grows by what the labels take.
    figure.savefig(file, bbox_inches="tight", pad_inches=0.06, transparent=True)
