"""Pictures of comparisons of arms: samples side by side, and films of how they come into being."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.generation import to_unit
from probseq_apps.report.diffusion_process import Process
from probseq_apps.report.online_look import headline, panels
from pseudovideo.plots import check_images, frame_heads, save_gif, side, tiles

# Panels of a row, inches of one, letters of its title; samples that are shown of each arm.
_ACROSS, _PANEL, _LETTERS = 3, (2.8, 2.95), 34
GRID = 36
# A film takes about so many seconds, each picture at least and at most so many.
_FILM_SECONDS, _SHORTEST, _LONGEST = 6.0, 0.06, 0.5


def save_arm_grids(
    images: Mapping[str, Float[Tensor, "n c h w"]], file: Path, *, title: str
) -> Path:
    """Write samples of all arms side by side, a square grid each, as PNG.

    Args:
        images: in -1..1 by label; the first 36 of each are shown.
        file: the file; its folder is made.
        title: stands above all.

    Raises:
        ValueError: a label without images, or neither grey nor colour.
    """
    for label, own in images.items():
        check_images(f"images[{label!r}]", own, 4)
    figure, found = panels(len(images), _ACROSS, _PANEL, shared=False, extra=(0.2, 0.45))
    for axes, (label, own) in zip(found, images.items(), strict=True):
        shown = own[:GRID]
        axes.imshow(tiles(shown, side(len(shown))))
        axes.set_axis_off()
        axes.set_title(textwrap.fill(label, _LETTERS), fontsize=10)
    headline(figure, title, 11)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def save_process(process: Process, file: Path, *, name: str, unit: str) -> Path:
    """Write how samples come into being as an animated GIF: images in a grid, videos in rows.

    Args:
        process: the snapshots.
        file: the file; its folder is made.
        name: what is shown, the first line of each caption.
        unit: of what was done, `step` or `level`.
    """
    frames = to_unit(process.frames)
    snapshots, length = frames.shape[1:3]
    done = process.done.tolist()
    return save_gif(
        rearrange(frames, "n k t c h w -> (n t) k c h w"),
        file,
        seconds_per_frame=min(_LONGEST, max(_SHORTEST, _FILM_SECONDS / snapshots)),
        columns=length if length > 1 else None,
        captions=[f"{name}\n{unit} {number:,} of {done[-1]:,}" for number in done],
        heads=frame_heads(length) if length > 1 else (),
    )
