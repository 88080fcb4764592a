"""Animated GIFs: videos, and how images come into being."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from probseq_apps.report.image_tiles import GAP, check_images, side, tiles

# The last picture stays for so many: it is the result.
_HOLD = 4
# Captions: size of the letters, their width on average with some room, and a line's height.
_SIZE, _LETTER, _LINE = 14, 7.6, 19


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

    Raises:
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
    pictures = [Image.fromarray(tiles(videos[:, frame], across)) for frame in range(frames)]
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


def _captioned(pictures: Sequence[Image.Image], captions: Sequence[str]) -> list[Image.Image]:
    """A caption above each picture, all of the same height."""
    width = pictures[0].width
    letters = max(8, int(width / _LETTER))
    lines = [
        [part for line in caption.splitlines() for part in textwrap.wrap(line, letters)]
        for caption in captions
    ]
    height = _LINE * max(len(found) for found in lines) + GAP
    captioned: list[Image.Image] = []
    for picture, found in zip(pictures, lines, strict=True):
        canvas = _below(picture, height)
        pen = ImageDraw.Draw(canvas)
        for row, line in enumerate(found):
            pen.text((width / 2, (row + 0.5) * _LINE), line, "black", _font(), anchor="mm")
        captioned.append(canvas)
    return captioned


def _headed(picture: Image.Image, heads: Sequence[str]) -> Image.Image:
    canvas = _below(picture, _LINE)
    pen = ImageDraw.Draw(canvas)
    cell = (picture.width + GAP) / len(heads)
    for place, head in enumerate(heads):
        pen.text((cell * (place + 0.5), _LINE / 2), head, "black", _font(), anchor="mm")
    return canvas


def _below(picture: Image.Image, height: int) -> Image.Image:
    """The picture below white of a height."""
    white = np.full((height, picture.width, 3), 255, np.uint8)
    return Image.fromarray(np.concatenate([white, np.asarray(picture)]))


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_SIZE)
