"""What the picture of a model's parts shows."""

import numpy as np
import pytest
import torch

from ohsvgp import Cosine, Gaussian, OnlineGP, Trend, decompose
from ohsvgp.plots import components_plot
from probseq.kernels import RBF, Periodic

T = torch.arange(40, dtype=torch.float64)


def test_the_picture_shows_each_part_of_the_kernel_and_the_mean_with_its_band() -> None:
    kernel = RBF(1, lengthscale=5.0) + Periodic(1, period=8.0)
    gp = OnlineGP(kernel, Gaussian(0.1), Cosine(20), mean=Trend())
    gp.update(T, 0.2 * T + (T * 0.785).sin())
    parts = decompose(gp, T)
    panels = components_plot(gp, T).axes
    assert [panel.get_title(loc="left") for panel in panels] == list(parts)
    for panel, law in zip(panels, parts.values(), strict=True):
        (line,), (band,) = panel.lines, panel.collections
        np.testing.assert_allclose(line.get_xydata(), torch.stack([T, law.mean], -1))
        low = law.mean - 2 * law.variance.sqrt()
        corners = {tuple(point) for point in band.get_paths()[0].vertices}
        assert {(float(t), float(y)) for t, y in zip(T, low, strict=True)} <= corners
    several = OnlineGP(kernel, Gaussian(0.1), Cosine(20))
    several.update(T, torch.zeros(2, 40))
    with pytest.raises(ValueError, match="one series"):
        components_plot(several, T)
