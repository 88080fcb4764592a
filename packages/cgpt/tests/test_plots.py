"""The oversmoothing figure draws what it is given."""

import inspect
import sys

import numpy as np
import pytest
import torch

from cgpt.plots import oversmoothing_plot
from probseq.errors import MissingExtraError


def test_lines_are_means_by_block_and_bands_hold_the_middle_half(tmp_path):
    many = torch.tensor([[0.0, 0.2, 0.4, 0.6, 0.8], [0.5, 0.5, 0.5, 0.5, torch.nan]])
    figure = oversmoothing_plot({"CGPT": torch.tensor([0.1, 0.2, 0.4]), "softmax": many})
    (axes,) = figure.axes
    first, second = axes.lines
    np.testing.assert_allclose(first.get_xydata(), [[1, 0.1], [2, 0.2], [3, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(second.get_xydata(), [[1, 0.4], [2, 0.5]], rtol=1e-6)
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices
    at_first = edges[edges[:, 0] == 1, 1]
    assert (at_first.min(), at_first.max()) == pytest.approx((0.2, 0.6))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["CGPT", "softmax"]
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_one_block_alone_has_a_whole_number_under_it():
    axes = oversmoothing_plot({"one": torch.tensor([0.5])}).axes[0]
    assert [tick for tick in axes.get_xticks() if 0.5 <= tick <= 1.5] == [1]


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 0), torch.zeros(1, 1, 1)])
def test_empty_or_misshapen_input_is_refused_by_name(values):
    # Unwrapped, because shape checks switched on by a test session would refuse first.
    with pytest.raises(ValueError, match="similarities of 'CGPT' must have shape"):
        inspect.unwrap(oversmoothing_plot)({"CGPT": values})
    with pytest.raises(ValueError, match="at least one method"):
        oversmoothing_plot({})


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"cgpt-transformer\[plots\]"):
        oversmoothing_plot({"one": torch.tensor([0.5])})
