"""Inducing points among the stamps, dense at the end and thinner the older."""

import numpy as np
import pytest
import torch

from ohsvgp import ExactGP, Fading, Gaussian, OnlineGP
from ohsvgp.bases import Advance
from probseq.kernels import RBF, Matern32


def chosen(stamps, M=20, batch=1):
    """Points after stamps that come in batches."""
    basis, kernel, previous = Fading(M), RBF(1).double(), None
    for part in torch.as_tensor(stamps, dtype=torch.float64).split(batch):
        previous = basis.advance(Advance(kernel, previous, part[:, None], float(part[-1])))
    assert previous is not None
    return previous.points[:, 0].numpy()


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("gap", [1e-9, 1.0, 86_400.0])
def test_the_latest_half_stays_and_older_gaps_grow_with_age(batch, gap):
    points = chosen(gap * torch.arange(1000.0), batch=batch)
    assert len(points) == 20
    np.testing.assert_allclose(points[-10:], gap * np.arange(990, 1000))
    assert points[0] == 0.0
    gaps, ages = np.diff(points)[:9], (points[-1] - points)[1:10]
    # Gaps are shares of their ages, within a factor of five or so.
    assert ((gaps > 0.1 * ages) & (gaps < 3 * ages)).all()
    assert (gaps[:-2] >= 0.99 * gaps[2:]).all()


def test_fewer_stamps_than_points_are_all_taken_equal_ones_once():
    np.testing.assert_array_equal(chosen([0.0, 2.0, 2.0, 1.0]), [0.0, 1.0, 2.0])


def test_with_as_many_points_as_stamps_the_model_is_the_exact_process():
    t = torch.linspace(0, 6, 30, dtype=torch.float64)
    kernel, y, new = Matern32(1, lengthscale=0.7), (2 * t).sin(), torch.linspace(0, 8, 17).double()
    gp, exact = OnlineGP(kernel, Gaussian(0.02), Fading(30)), ExactGP(kernel, Gaussian(0.02))
    for part in torch.arange(30).split(4):
        gp.update(t[part], y[part])
    exact.update(t, y)
    found, wanted = gp.predict(new), exact.predict(new)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.variance, wanted.variance, rtol=0, atol=1e-5)
