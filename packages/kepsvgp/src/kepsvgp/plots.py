"""Figure of the spectra of attention matrices (the paper's Fig. 4).

Built with matplotlib's object-oriented API on the Agg canvas: no window, no global state. Save it
with ``figure.savefig(path)``. matplotlib comes with the extra ``plots``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kepsvgp.spectrum import LayerSpectrum
from probseq.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart under every common colour-blindness.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_MAX_COLUMNS = 4
_LEGEND_COLUMNS = 3


def spectrum_plot(spectra: Mapping[str, Sequence[LayerSpectrum]]) -> "Figure":
    """Cumulative singular values of attention matrices: a panel for each block, a line a model.

    Lines are means over heads, bands reach from the lowest head to the highest.

    Args:
        spectra: what :func:`~kepsvgp.spectrum.attention_spectrum` gives, by model.

    Returns:
        A figure with up to four panels a row; percent on the vertical axis.

    Raises:
        ValueError: no model, or a model without spectra, was given.
        MissingExtraError: matplotlib is not installed.
    """
    if not spectra or not all(spectra.values()):
        raise ValueError(f"spectra must hold at least one block of each model, got {spectra}")
    layers = sorted({found.layer for blocks in spectra.values() for found in blocks})
    columns = min(len(layers), _MAX_COLUMNS)
    rows = -(-len(layers) // columns)
    legend_rows = -(-len(spectra) // _LEGEND_COLUMNS)
    figures = require("matplotlib.figure", extra="plots", distribution="kepsvgp")
    agg = require("matplotlib.backends.backend_agg", extra="plots", distribution="kepsvgp")
    height = 2.9 * rows + 0.3 + 0.25 * legend_rows
    figure: Figure = figures.Figure(figsize=(max(3.1 * columns, 4.6), height), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    agg.FigureCanvasAgg(figure)
    for place, layer in enumerate(layers):
        axes = figure.add_subplot(rows, columns, place + 1)
        for number, (name, blocks) in enumerate(spectra.items()):
            for found in blocks:
                if found.layer == layer:
                    _draw(axes, name, found, number)
        axes.set_title(f"Block {layer + 1}", fontsize=11)
        axes.set_xlabel("Singular values")
        if place % columns == 0:
            axes.set_ylabel("Share of their sum (%)")
        _finish(axes)
    # Of all panels: a model may be missing from the first.
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles=[handles[name] for name in spectra],
        loc="outside lower center",
        ncols=min(len(spectra), _LEGEND_COLUMNS),
        frameon=False,
        fontsize=9,
    )
    return figure


def _draw(axes: "Axes", name: str, found: LayerSpectrum, number: int) -> None:
    colour = _PALETTE[number % len(_PALETTE)]
    shares = 100 * found.cumulative.numpy()
    index = range(1, shares.shape[1] + 1)
    axes.plot(
        index,
        shares.mean(0),
        label=name,
        color=colour,
        # Curves lie upon each other where attention is of equal rank: the dashes show both.
        linestyle=_DASHES[number % len(_DASHES)],
        linewidth=1.8,
    )
    axes.fill_between(index, shares.min(0), shares.max(0), color=colour, alpha=0.15, linewidth=0)


def _finish(axes: "Axes") -> None:
    axes.set_xlim(left=1)
    axes.set_ylim(0, 102)
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.xaxis.label.set_fontsize(10)
    axes.yaxis.label.set_fontsize(10)
