"""Figure of oversmoothing by depth.

Built with matplotlib's object-oriented API on the Agg canvas: no window, no global state. Save it
with ``figure.savefig(path)``. matplotlib comes with the extra ``plots``.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart under every common colour-blindness; yellow is left out, being
# too pale for a line on white. Past one round the dash pattern changes.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_MARKERS = "os^Dv"


def oversmoothing_plot(
    similarities: Mapping[str, Float[Tensor, " depth"] | Float[Tensor, "depth sequences"]],
) -> "Figure":
    """Mean cosine similarity between tokens against depth, one line a method.

    Args:
        similarities: by method, one number a block, or one row a block with a number for each
            sequence (what :func:`cgpt.analysis.token_cosine_similarity` returns): then the line is
            the mean and the band holds the middle half of the sequences. NaN is left out.

    Returns:
        A figure with one panel.

    Raises:
        ValueError: no method is given, or one has no block.
        MissingExtraError: matplotlib is not installed.
    """
    if not similarities:
        raise ValueError("similarities must hold at least one method, got an empty mapping")
    for name, values in similarities.items():
        if values.ndim not in (1, 2) or values.numel() == 0:
            raise ValueError(
                f"similarities of {name!r} must have shape (depth,) or (depth, sequences), all at "
                f"least 1, got {tuple(values.shape)}"
            )
    figures = require("matplotlib.figure", extra="plots", distribution="cgpt-transformer")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="cgpt-transformer")
    columns = 2 if len(similarities) > 3 and max(map(len, similarities)) <= 32 else 1
    legend_rows = math.ceil(len(similarities) / columns)
    figure = figures.Figure(figsize=(5.6, 3.7 + 0.2 * legend_rows), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    agg.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (name, values) in enumerate(similarities.items()):
        repeat, place = divmod(index, len(_PALETTE))
        colour, dashes = _PALETTE[place], _DASHES[repeat % len(_DASHES)]
        values = values.detach().double().cpu()
        values = values[:, None] if values.ndim == 1 else values
        blocks = torch.arange(1, len(values) + 1).numpy()
        axes.plot(
            blocks,
            values.nanmean(1).numpy(),
            label=name,
            color=colour,
            linestyle=dashes,
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4,
            linewidth=1.8,
        )
        if values.shape[1] > 1:
            quarters = torch.tensor([0.25, 0.75], dtype=values.dtype)
            low, high = values.nanquantile(quarters, dim=1).numpy()
            axes.fill_between(blocks, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="Attention block", ylabel="Cosine similarity between tokens")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    # Half a block on either side: one block alone still has a whole number under it.
    axes.set_xlim(0.5, max(map(len, similarities.values())) + 0.5)
    axes.set_ylim(top=1.02)
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure
