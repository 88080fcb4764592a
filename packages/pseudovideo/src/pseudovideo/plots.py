"""Images in a grid, and animated GIFs of videos with captions; pillow comes with `plots`."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from probseq.errors import require

if TYPE_CHECKING:
    from PIL import Image

# White between two images, in pixels as they are drawn.
GAP = 2
# Small images are drawn larger, at least this many pixels wide; more beside labels.
LEAST_CELL, LEAST_LABELLED = 64, 96
# The last picture stays for so many: it is the result.
_HOLD = 4
# Captions: size of the letters, their width on average with some room, and a line's height.
_SIZE, _LETTER, _LINE = 14, 7.6, 19


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


def side(count: int) -> int:
    """Images in a row of a grid that has as many rows."""
    return int(np.ceil(np.sqrt(count)))


def tiles(images: Tensor, columns: int, least: int = LEAST_CELL) -> UInt8[np.ndarray, "y x 3"]:
    """Images in rows on white, small ones enlarged by a whole factor.

    Args:
        images: (n, c, h, w) in -1..1; values beyond are clamped.
        columns: images in a row.
        least: pixels that an image is wide at least.
    """
    values = images.detach().float().clamp(-1, 1).add(1).mul(127.5).round().byte().cpu()
    pixels = values.expand(-1, 3, -1, -1).movedim(1, -1).numpy()
    factor = max(1, -(-least // pixels.shape[2]))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    count, height, width, _ = pixels.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), 255, np.uint8)
    for place, image in enumerate(pixels):
        row, column = divmod(place, columns)
        top, left = row * (height + GAP), column * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas


def frame_heads(count: int) -> list[str]:
    """Heads of a video's frames: "1", "2", …, and "image" for the last."""
    return [*map(str, range(1, count)), "image"]


def frame_captions(name: str, count: int) -> list[str]:
    """Captions of a video's frames for `save_gif`: "frame 1", …, "image", each below the name."""
    return [
        f"{name}\n{head if head == 'image' else f'frame {head}'}" for head in frame_heads(count)
    ]


def save_gif(
    videos: Float[Tensor, "n T c h w"],
    file: Path,
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

    Returns:
        The file.

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
    file.parent.mkdir(parents=True, exist_ok=True)
    first, *others = palettes
    first.save(file, save_all=True, append_images=others, duration=durations, loop=0)
    return file


def _captioned(pictures: "list[Image.Image]", captions: Sequence[str]) -> "list[Image.Image]":
    """A caption above each picture, all of the same height."""
    width = pictures[0].width
    letters = max(8, int(width / _LETTER))
    lines = [
        [part for line in caption.splitlines() for part in textwrap.wrap(line, letters)]
        for caption in captions
    ]
    height = _LINE * max(len(found) for found in lines) + GAP
    captioned: list["Image.Image"] = []
    for picture, found in zip(pictures, lines, strict=True):
        canvas = _below(picture, height)
        pen = _pen(canvas)
        for row, line in enumerate(found):
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
    """The picture below white of a height."""
    white = np.full((height, picture.width, 3), 255, np.uint8)
    return _picture(np.concatenate([white, np.asarray(picture)]))


def _picture(pixels: np.ndarray) -> "Image.Image":
    return require("PIL.Image", extra="plots", distribution="pseudovideo").fromarray(pixels)


def _pen(canvas: "Image.Image") -> Any:
    return require("PIL.ImageDraw", extra="plots", distribution="pseudovideo").Draw(canvas)


def _font() -> Any:
    fonts = require("PIL.ImageFont", extra="plots", distribution="pseudovideo")
    return fonts.load_default(_SIZE)
