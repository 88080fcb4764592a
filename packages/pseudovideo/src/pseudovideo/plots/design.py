"""The picture of a ranking of designs: how work is spread over frames, and what it costs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probseq.errors import require
from probseq.figures import COLOURS, GUIDE, headline, light_grid, panels
from pseudovideo.beyond.design import Design

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["design_plot"]

_TITLE = (
    "Designs of pseudo videos for Gaussian images with the data's covariance, least distance at "
    "the top; nothing was trained"
)
# Height of a row in inches, and of what stands around the rows; entries of the legend in a row.
_ROW, _AROUND, _ACROSS = 0.3, 1.6, 6
_BAR: dict[str, Any] = {"height": 0.66, "edgecolor": "white", "linewidth": 0.4}


def design_plot(designs: Mapping[str, Design]) -> "Figure":
    """Draw a row for each design: bits by frame, error of the image, and the learner's distance.

    Left the share of the image's bits that each frame adds, the most corrupted first; in the middle
    the least error of the image given the frames in its window; right the Fréchet distance of what
    the limited learner draws, beside that of the image alone where it is among the designs.

    Args:
        designs: by name, the uppermost first, such as `rank_designs` orders them; one or more.

    Raises:
        ValueError: no designs.
        MissingExtraError: matplotlib is not installed.
    """
    if not designs:
        raise ValueError("designs must hold at least one, got none")
    figure, (left, middle, right) = panels(
        3, 3, (3.5, _ROW * len(designs) + _AROUND), shared=False, extra=(1.4, 0.3)
    )
    maps = require("matplotlib", extra="plots", distribution="pseudovideo").colormaps
    longest = max(len(design.bits) for design in designs.values())
    # By their distance from the image, which has the same colour in videos of all lengths.
    colours = maps["viridis"].resampled(max(longest, 2))
    handles: dict[int, Any] = {}
    for row, design in enumerate(designs.values()):
        start = 0.0
        for frame, share in enumerate((100 * design.bits / design.bits.sum()).tolist()):
            before = len(design.bits) - 1 - frame
            bar = left.barh(row, share, left=start, color=colours(before), **_BAR)
            handles.setdefault(before, bar)
            start += share
    rows = range(len(designs))
    errors = [float(design.errors[-1]) for design in designs.values()]
    middle.scatter(errors, rows, color=COLOURS[0], s=28)
    middle.set_xscale("log")
    right.barh(rows, [design.distance for design in designs.values()], color=COLOURS[1], **_BAR)
    right.locator_params(axis="x", nbins=5)
    _finish(left, list(designs), "Bits of the image by frame", "Share of all bits (%)")
    _finish(
        middle,
        [""] * len(designs),
        "Least error of the image",
        "Squared error per pixel, given its window",
    )
    _finish(right, [""] * len(designs), "Limited learner", "Fréchet distance (pixels)")
    shown = {_ahead(before): handles[before] for before in sorted(handles, reverse=True)}
    alone = [design.distance for design in designs.values() if len(design.bits) == 1]
    if alone:
        level = right.axvline(alone[0], color=GUIDE, linestyle="--", linewidth=1.0)
        shown["image alone"] = level
    place: Any = {"loc": "outside lower center", "ncols": min(len(shown), _ACROSS)}
    figure.legend(list(shown.values()), list(shown), **place, frameon=False, fontsize=8.5)
    headline(figure, _TITLE, 10)
    return figure


def _ahead(before: int) -> str:
    if before == 0:
        return "the image itself"
    return f"{before} frame{'s' if before > 1 else ''} before"


def _finish(axes: "Axes", names: list[str], title: str, label: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label, fontsize=9)
    light_grid(axes)
