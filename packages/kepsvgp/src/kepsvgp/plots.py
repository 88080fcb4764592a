"""Figure of the spectra of attention matrices (the paper's Fig. 4); needs the extra ``plots``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kepsvgp.spectrum import LayerSpectrum
from probseq.errors import require
from probseq.figures import label_bottom, light_grid, line_legend, line_style, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 4


def spectrum_plot(spectra: Mapping[str, Sequence[LayerSpectrum]]) -> "Figure":
    """Draw cumulative singular values in percent: a panel for each block, a line a model.

    ``spectra`` are those of :func:`~kepsvgp.spectrum.attention_spectrum`, by model. Lines are means
    over heads, bands reach from the lowest head to the highest.
    """
    if not spectra or not all(spectra.values()):
        raise ValueError(f"spectra must hold at least one block of each model, got {spectra}")
    require("matplotlib.figure", extra="plots", distribution="kepsvgp")
    layers = sorted({each.layer for blocks in spectra.values() for each in blocks})
    figure, grid = panels(len(layers), _ACROSS, (3.1, 2.9), extra=(0.3, 0.6))
    # Curves lie upon each other where attention is of equal rank: the dashes show both.
    lines = ("-", "--", ":")
    styles = {
        name: line_style(number) | {"linestyle": lines[number % len(lines)], "marker": ""}
        for number, name in enumerate(spectra)
    }
    for axes, layer in zip(grid, layers, strict=True):
        for name, blocks in spectra.items():
            for each in blocks:
                if each.layer == layer:
                    _draw(axes, name, each, styles[name]["color"], styles[name]["linestyle"])
        axes.set_title(f"Block {layer + 1}", fontsize=11)
        axes.set_xlim(left=1)
        axes.set_ylim(0, 102)
        light_grid(axes)
    for axes in grid[::_ACROSS]:
        axes.set_ylabel("Share of their sum (%)")
    label_bottom(grid, _ACROSS, "Singular values")
    line_legend(figure, styles)
    return figure


def _draw(axes: "Axes", name: str, spectrum: LayerSpectrum, colour: str, line: str) -> None:
    shares = 100 * spectrum.cumulative.numpy()
    index = range(1, shares.shape[1] + 1)
    axes.plot(index, shares.mean(0), label=name, color=colour, linestyle=line, linewidth=1.8)
    axes.fill_between(index, shares.min(0), shares.max(0), color=colour, alpha=0.15, linewidth=0)
