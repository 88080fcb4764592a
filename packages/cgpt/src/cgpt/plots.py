"""Figure of oversmoothing by depth (the paper's Fig. III); needs the extra ``plots``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.errors import require
from probseq.figures import legend, light_grid, line_style, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def oversmoothing_plot(
    similarities: Mapping[str, Float[Tensor, " depth"] | Float[Tensor, "depth sequences"]],
) -> "Figure":
    """Draw the mean cosine similarity between tokens against depth, one line a method.

    Similarities are by method, one number a block, or one row a block with a number for each
    sequence (as of :func:`cgpt.analysis.token_cosine_similarity`): then the line is the mean and
    the band holds the middle half of the sequences. NaN is left out.
    """
    if not similarities:
        raise ValueError("similarities must hold at least one method, got an empty mapping")
    for name, values in similarities.items():
        if values.ndim not in (1, 2) or values.numel() == 0:
            raise ValueError(
                f"similarities of {name!r} must have shape (depth,) or (depth, sequences), all at "
                f"least 1, got {tuple(values.shape)}"
            )
    require("matplotlib.figure", extra="plots", distribution="cgpt-transformer")
    across = 2 if len(similarities) > 3 and max(map(len, similarities)) <= 32 else 1
    figure, grid = panels(1, 1, (5.1, 3.2 + 0.2 * len(similarities) / across))
    axes: Any = grid[0]
    for index, (name, values) in enumerate(similarities.items()):
        values = values.detach().double().cpu()
        values = values[:, None] if values.ndim == 1 else values
        blocks, style = torch.arange(1, len(values) + 1).numpy(), line_style(index)
        axes.plot(blocks, values.nanmean(1).numpy(), label=name, markersize=4, **style)
        if values.shape[1] > 1:
            quarters = torch.tensor([0.25, 0.75], dtype=values.dtype)
            low, high = values.nanquantile(quarters, dim=1).numpy()
            axes.fill_between(blocks, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="Attention block", ylabel="Cosine similarity between tokens")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    # Half a block on either side: one block alone still has a whole number under it.
    axes.set_xlim(0.5, max(map(len, similarities.values())) + 0.5)
    axes.set_ylim(top=1.02)
    light_grid(axes)
    legend(figure, [axes], across=across)
    return figure
