"""What the picture of a model's memory shows."""

import numpy as np
import pytest
import torch

from ohsvgp import Gaussian, LegT, OnlineGP
from ohsvgp.plots import memory_plot
from probseq.kernels import RBF

T = torch.arange(60, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::ohsvgp.LostInformationWarning")
def test_the_picture_shows_deviations_along_the_past_and_what_updates_lost() -> None:
    gp = OnlineGP(RBF(1, lengthscale=2.0, outputscale=4.0), Gaussian(0.25), LegT(8, window=15.0))
    with pytest.raises(ValueError, match="one series that has learned data"):
        memory_plot(gp)
    infos = [gp.update(T[part], T[part].sin()) for part in torch.arange(60).chunk(4)]
    above, below = memory_plot(gp, infos).axes
    prior, posterior, noise = above.lines
    np.testing.assert_allclose(prior.get_ydata(), 2.0, rtol=1e-6)
    np.testing.assert_allclose(noise.get_ydata(), 0.5)
    stamps, deviation = posterior.get_xydata().T
    expected = gp.predict(stamps).variance.sqrt()
    np.testing.assert_allclose(deviation, expected, rtol=1e-6)
    assert (stamps[0], stamps[-1]) == (0.0, 59.0)
    assert deviation[:300].min() > 1.9  # forgotten
    lost, missed = below.lines
    np.testing.assert_array_equal(lost.get_xdata(), [14.0, 29.0, 44.0, 59.0])
    np.testing.assert_allclose(lost.get_ydata(), [float(i.lost_information) for i in infos])
    np.testing.assert_allclose(missed.get_ydata(), [float(i.unexplained) for i in infos])
    (alone,) = memory_plot(gp).axes
    assert len(alone.lines) == 3
