"""Pictures of images, videos and their errors; they come with the extra `plots`."""

from pseudovideo.plots.errors import FrameErrors, frame_errors_plot
from pseudovideo.plots.images import (
    check_images,
    frame_captions,
    frame_heads,
    save_classes,
    save_gif,
    save_grid,
    save_grids,
    save_pngs,
    save_process,
    save_rows,
    save_samples,
    save_strips,
    side,
    tiles,
)
from pseudovideo.plots.theorem import save_theorem, theorem_plot

__all__ = [
    "FrameErrors",
    "check_images",
    "frame_captions",
    "frame_errors_plot",
    "frame_heads",
    "save_classes",
    "save_gif",
    "save_grid",
    "save_grids",
    "save_pngs",
    "save_process",
    "save_rows",
    "save_samples",
    "save_strips",
    "save_theorem",
    "side",
    "theorem_plot",
    "tiles",
]
