"""Pictures of images, videos and their errors; they come with the extra `plots`."""

from pseudovideo.plots.errors import FrameErrors, frame_errors_plot
from pseudovideo.plots.images import (
    frame_heads,
    save_gif,
    save_grid,
    save_grids,
    save_pngs,
    save_rows,
    tiles,
)
from pseudovideo.plots.theorem import save_theorem, theorem_plot

__all__ = [
    "FrameErrors",
    "frame_errors_plot",
    "frame_heads",
    "save_gif",
    "save_grid",
    "save_grids",
    "save_pngs",
    "save_rows",
    "save_theorem",
    "theorem_plot",
    "tiles",
]
