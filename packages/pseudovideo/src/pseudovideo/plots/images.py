"""Pictures of images and videos: grids, strips and films.

Images are in -1..1; values beyond are clamped.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from probseq.errors import require
from probseq.figures import headline, panels
from pseudovideo.pixels import to_bytes, to_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

# Between two images: pixels as they are drawn, of a grey that neither black nor white runs into.
GAP, BETWEEN = 2, 112
# Small images are drawn larger, at least this many pixels wide; more beside labels.
LEAST_CELL, LEAST_LABELLED = 64, 96
# The last picture stays for so many: it is the result.
_HOLD = 4
# A film of a process takes about so many seconds, each picture at least and at most so many.
_FILM_SECONDS, _SHORTEST, _LONGEST = 6.0, 0.06, 0.5
# Captions: size of the letters, their width on average with some room, and a line's height.
_SIZE, _LETTER, _LINE = 14, 7.6, 19
# Titles in points, the width of a letter as a share of that, the fewest letters of a line; the
# letters of a label.
_DPI, _TITLE_SIZE, _TITLE_LETTER, _TITLE_LETTERS, _LABEL_LETTERS = 150, 9, 0.6, 28, 22
# Samples of several models: grids of a row, inches of one, letters of its title.
_GRIDS_ACROSS, _GRID_PANEL, _GRID_LETTERS = 3, (2.8, 2.95), 34

# Samples of a grid, videos of a film, and those of them that are strips.
_SAMPLES, _FILM, _STRIPS = 64, 16, 4
# Classes of a picture, and samples of each.
_CLASSES, _OF_CLASS = 20, 10


def check_images(name: str, values: Tensor, dimensions: int) -> None:
    """Refuse what are no images.

    Args:
        name: of the argument.
        values: its value.
        dimensions: how many it must have.

    Raises:
        ValueError: another number of dimensions, an empty one, or neither grey nor colour.
    """
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

    Args:
        images: (n, c, h, w) in -1..1; values beyond are clamped.
        columns: images in a row.
        least: pixels that an image is wide at least.
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
    for place, image in enumerate(pixels):
        row, column = divmod(place, columns)
        top, left = row * (height + GAP), column * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas


def frame_heads(count: int) -> list[str]:
    """Return heads of a video's frames: "1", "2", …, and "image" for the last."""
    return [*map(str, range(1, count)), "image"]


def frame_captions(name: str, count: int) -> list[str]:
    """Return captions of frames for `save_gif`: "frame 1", …, "image", below the name."""
    return [
        f"{name}\n{head if head == 'image' else f'frame {head}'}" for head in frame_heads(count)
    ]


def save_gif(
    videos: Float[Tensor, "n T c h w"],
    file: Path | str,
    *,
    seconds_per_frame: float = 0.25,
    columns: int | None = None,
    captions: Sequence[str] = (),
    heads: Sequence[str] = (),
) -> Path:
    """Write videos side by side in a grid, as an animated GIF that starts again at its end.

    Args:
        videos: in -1..1, the first frame first; values beyond are clamped.
        file: the file; its folder is made.
        seconds_per_frame: of all frames but the last, which stays four times as long.
        columns: videos in a row; by default as many as there are rows.
        captions: stand above the grid, one for each frame, lines that end stay ended; none by
            default.
        heads: stand above the columns.

    Raises:
        MissingExtraError: pillow is not installed.
        ValueError: no videos, neither grey nor colour, another number of captions than of frames
            or of heads than of columns, or frames shorter than a hundredth of a second, GIF's unit.
    """
    check_images("videos", videos, 5)
    if not seconds_per_frame >= 0.01:
        raise ValueError(f"seconds_per_frame must be at least 0.01, got {seconds_per_frame}")
    across, frames = columns or side(len(videos)), videos.shape[1]
    for name, texts, count in (("captions", captions, frames), ("heads", heads, across)):
        if texts and len(texts) != count:
            raise ValueError(f"{name} must be {count}, got {len(texts)}")
    pictures = [_picture(tiles(videos[:, frame], across)) for frame in range(frames)]
    if heads:
        pictures = [_headed(picture, heads) for picture in pictures]
    if captions:
        pictures = _captioned(pictures, captions)
    # Grey has no more than GIF's 256 colours; colours are chosen for each frame.
    grey = videos.shape[2] == 1
    palettes = [p.convert("L") if grey else p.quantize(256) for p in pictures]
    unit = round(1000 * seconds_per_frame)
    durations = [unit] * (len(palettes) - 1) + [_HOLD * unit]
    file = with_folder(file)
    first, *others = palettes
    first.save(file, save_all=True, append_images=others, duration=durations, loop=0)
    return file


def _captioned(pictures: "list[Image.Image]", captions: Sequence[str]) -> "list[Image.Image]":
    """Return a caption above each picture, all of the same height."""
    width = pictures[0].width
    letters = max(8, int(width / _LETTER))
    lines = [
        [
            line_of_width
            for line in caption.splitlines()
            for line_of_width in textwrap.wrap(line, letters)
        ]
        for caption in captions
    ]
    height = _LINE * max(len(wrapped) for wrapped in lines) + GAP
    captioned: list["Image.Image"] = []
    for picture, wrapped in zip(pictures, lines, strict=True):
        canvas = _below(picture, height)
        pen = _pen(canvas)
        for row, line in enumerate(wrapped):
            pen.text((width / 2, (row + 0.5) * _LINE), line, "black", _font(), anchor="mm")
        captioned.append(canvas)
    return captioned


def _headed(picture: "Image.Image", heads: Sequence[str]) -> "Image.Image":
    canvas = _below(picture, _LINE)
    pen = _pen(canvas)
    cell = (picture.width + GAP) / len(heads)
    for place, head in enumerate(heads):
        pen.text((cell * (place + 0.5), _LINE / 2), head, "black", _font(), anchor="mm")
    return canvas


def _below(picture: "Image.Image", height: int) -> "Image.Image":
    """Return the picture below white of a height."""
    white = np.full((height, picture.width, 3), 255, np.uint8)
    return _picture(np.concatenate([white, np.asarray(picture)]))


def _picture(pixels: np.ndarray) -> "Image.Image":
    return require("PIL.Image", extra="plots", distribution="pseudovideo").fromarray(pixels)


def _pen(canvas: "Image.Image") -> Any:
    return require("PIL.ImageDraw", extra="plots", distribution="pseudovideo").Draw(canvas)


def _font() -> Any:
    fonts = require("PIL.ImageFont", extra="plots", distribution="pseudovideo")
    return fonts.load_default(_SIZE)


def save_process(
    frames: UInt8[Tensor, "n k t c h w"],
    done: Int64[Tensor, " k"],
    file: Path | str,
    *,
    name: str,
    unit: str,
    stages: int = 1,
) -> Path:
    """Write how samples come into being as an animated GIF: images in a grid, videos in rows.

    Args:
        frames: of n samples at k snapshots, bytes.
        done: steps or levels that were done at each snapshot.
        file: the file; its folder is made.
        name: what is shown, the first line of each caption.
        unit: of what was done, `step` or `level`.
        stages: of a video, of as many steps each; captions tell which is going on.
    """
    snapshots, length = frames.shape[1:3]
    total = int(done[-1])

    def progress(number: int) -> str:
        if stages == 1:
            return f"{unit} {number:,} of {total:,}"
        each = total // stages
        stage = max(0, number - 1) // each
        return f"stage {stage + 1} of {stages}, {unit} {number - stage * each:,} of {each:,}"

    return save_gif(
        rearrange(to_unit(frames), "n k t c h w -> (n t) k c h w"),
        file,
        seconds_per_frame=min(_LONGEST, max(_SHORTEST, _FILM_SECONDS / snapshots)),
        columns=length if length > 1 else None,
        captions=[f"{name}\n{progress(number)}" for number in done.tolist()],
        heads=frame_heads(length) if length > 1 else (),
    )


def save_samples(
    images: UInt8[Tensor, "n c h w"],
    videos: UInt8[Tensor, "m t c h w"],
    folder: Path,
    name: str,
    *,
    title: str | None = None,
    labels: Int64[Tensor, " n"] | None = None,
    class_names: Sequence[str] = (),
) -> list[Path]:
    """Write a grid of samples, `NAME.png`; of videos also strips and a film.

    Args:
        images: samples, bytes; the first 64 are shown.
        videos: some of them with all their frames, the image last: the first 4 are the strips of
            `NAME-videos.png`, the first 16 the film `NAME.gif`.
        folder: of the files; it is made.
        name: of the files.
        title: stands above each; of the film the name by default.
        labels: classes of the samples; where given, the grid is that of `save_classes`.
        class_names: names of all classes.
    """
    shown, moving = (to_unit(values) for values in (images[:_SAMPLES], videos[:_FILM]))
    if labels is None:
        files = [save_grid(shown, folder / f"{name}.png", title=title)]
    else:
        file = folder / f"{name}.png"
        files = [save_classes(images, labels, class_names, file, title=title)]
    if videos.shape[1] > 1:
        files.append(save_strips(moving[:_STRIPS], folder / f"{name}-videos.png", title=title))
        captions = frame_captions(title or name, videos.shape[1])
        files.append(save_gif(moving, folder / f"{name}.gif", captions=captions))
    return files


def save_pngs(images: UInt8[Tensor, "n c h w"], folder: Path | str) -> list[Path]:
    """Write each image as a PNG of its own, at its own size, as `00000.png` and so on.

    Args:
        images: bytes.
        folder: of the files; it is made.

    Raises:
        ValueError: `images` are none.
        MissingExtraError: pillow is not installed.
    """
    check_images("images", images, 4)
    files = [with_folder(Path(folder) / f"{number:05d}.png") for number in range(len(images))]
    for image, file in zip(images.cpu().movedim(1, -1).numpy(), files, strict=True):
        _picture(image[..., 0] if image.shape[-1] == 1 else image).save(file)
    return files


def save_classes(
    images: UInt8[Tensor, "n c h w"],
    labels: Int64[Tensor, " n"],
    class_names: Sequence[str],
    file: Path | str,
    *,
    title: str | None = None,
) -> Path:
    """Write samples in a row for each class with its name, as PNG.

    Args:
        images: samples, bytes; the first 10 of each of the first 20 classes are shown, and white
            where there are fewer.
        labels: their classes; those without samples have no row.
        class_names: names of all classes.
        file: the file; its folder is made.
        title: stands above all.
    """
    classes: list[int] = labels.unique()[:_CLASSES].tolist()
    rows_of_classes = [to_unit(images[labels == label][:_OF_CLASS]) for label in classes]
    longest = max(map(len, rows_of_classes))
    rows = [
        torch.cat([row, row.new_ones(longest - len(row), *row.shape[1:])])
        for row in rows_of_classes
    ]
    return save_rows([class_names[label] for label in classes], rows, file, title=title)


def save_grid(
    images: Float[Tensor, "n c h w"],
    file: Path | str,
    *,
    columns: int | None = None,
    title: str | None = None,
) -> Path:
    """Write images in a grid, as PNG.

    Args:
        images: grey or colour.
        file: the file; its folder is made.
        columns: images in a row; by default as many as there are rows.
        title: stands above them; without one the file holds the images alone, pixel for pixel.

    Raises:
        ValueError: no images, or neither grey nor colour.
    """
    check_images("images", images, 4)
    canvas = tiles(images, columns or side(len(images)))
    file = with_folder(file)
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
    """Write several grids of images side by side, such as samples of several models, as PNG.

    Args:
        grids: images by the title of each grid.
        file: the file; its folder is made.
        title: stands above all.

    Raises:
        ValueError: no images, or neither grey nor colour.
    """
    size, extra = _GRID_PANEL, (0.2, 0.45)
    figure, panel_axes = panels(len(grids), _GRIDS_ACROSS, size, shared=False, extra=extra)
    for axes, (label, images) in zip(panel_axes, grids.items(), strict=True):
        check_images(label, images, 4)
        axes.imshow(tiles(images, side(len(images))))
        axes.set_axis_off()
        axes.set_title(textwrap.fill(label, _GRID_LETTERS), fontsize=10)
    headline(figure, title, 11)
    file = with_folder(file)
    figure.savefig(file)
    return file


def save_rows(
    labels: Sequence[str],
    rows: Sequence[Tensor],
    file: Path | str,
    heads: Sequence[str] = (),
    *,
    title: str | None = None,
) -> Path:
    """Write rows of images with a label each, and heads above the columns, as PNG.

    Args:
        labels: of the rows.
        rows: images (n, c, h, w) of each row, equally many.
        file: the file; its folder is made.
        heads: above the columns; none by default.
        title: stands above all.
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
    axes.set_xticks([cell * (place + 0.5) for place in range(len(heads))], list(heads))
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    file = with_folder(file)
    _save(figure, file)
    return file


def save_strips(
    videos: Float[Tensor, "n T c h w"], file: Path | str, *, title: str | None = None
) -> Path:
    """Write videos as strips, one below the other, the image on the right, as PNG.

    Args:
        videos: grey or colour.
        file: the file; its folder is made.
        title: stands above them.

    Raises:
        ValueError: no videos, or neither grey nor colour.
    """
    check_images("videos", videos, 5)
    heads = frame_heads(videos.shape[1])
    return save_rows([""] * len(videos), list(videos), file, heads, title=title)


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
        letters = max(_TITLE_LETTERS, int(72 * width / _DPI / (_TITLE_LETTER * _TITLE_SIZE)))
        axes.set_title(textwrap.fill(title, letters), fontsize=_TITLE_SIZE)
    return figure, axes


def _save(figure: "Figure", file: Path) -> None:
    # The images fill the figure, and the file grows by what the labels take.
    figure.savefig(file, bbox_inches="tight", pad_inches=0.06)
