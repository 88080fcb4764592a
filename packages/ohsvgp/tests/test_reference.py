"""The streaming GP in explicit form."""

import math

import pytest
import torch

from ohsvgp import Gaussian, OnlineGP, UniformGrid
from ohsvgp.reference import StreamingGP
from probseq.kernels import RBF

# Few inducing variables for streams of this length, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*inducing variables cannot hold the stream")


def stream(count, length):
    t = torch.linspace(0.0, length, count, dtype=torch.float64)
    noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return t, 0.7 * (1.1 * t).sin() + 0.5 * (2.9 * t).sin() + 0.1 * noise


def test_the_streaming_gp_is_ours_without_power_ep():
    t, y = stream(60, 4.0)
    literal = StreamingGP(RBF(1, lengthscale=0.2).double(), 0.05, jitter=1e-9)
    noise = Gaussian(torch.tensor(0.05, dtype=torch.float64))
    ours = OnlineGP(RBF(1, lengthscale=0.2), noise, UniformGrid(12), alpha=0.0, rel_jitter=1e-9)
    for part in torch.arange(60).chunk(3):
        grid = torch.linspace(0.0, float(t[part][-1]), 12, dtype=torch.float64)
        literal.update(t[part, None], y[part], grid[:, None])
        ours.update(t[part], y[part])
    mean, variance = literal.predict(t[:, None])
    law = ours.predict(t)
    torch.testing.assert_close(mean, law.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(variance, law.variance, rtol=0, atol=1e-6)


def test_the_streaming_gp_climbs_its_bound_by_a_step_of_adam():
    (t, y), places = stream(30, 4.0), torch.linspace(0.0, 4.0, 7, dtype=torch.float64)
    kernel = RBF(1).double()
    gp = StreamingGP(kernel, 0.05, learn=True)
    bound = gp.update(t[:, None], y, places[:, None])
    assert gp.state is not None
    # The first step of Adam is as long as its learning rate.
    moved = (gp.state.points[:, 0] - places).abs()
    torch.testing.assert_close(moved, torch.full_like(places, 0.01), rtol=1e-4, atol=0)
    after = StreamingGP(kernel, 0.05).update(t[:, None], y, gp.state.points)
    assert float(after) > float(bound)


def test_the_bound_of_the_streaming_gp_is_that_of_a_sparse_gp_at_first():
    (t, y), places = stream(30, 4.0), torch.linspace(0.0, 4.0, 7, dtype=torch.float64)
    kernel = RBF(1, lengthscale=1.0).double()
    found = StreamingGP(kernel, 0.05, jitter=1e-12).update(t[:, None], y, places[:, None])
    with torch.no_grad():
        K_uu, K_uf = kernel(places[:, None], places[:, None]), kernel(places[:, None], t[:, None])
        Q = K_uf.mT @ torch.linalg.solve(K_uu, K_uf)
        noisy = Q + 0.05 * torch.eye(30, dtype=torch.float64)
        evidence = -0.5 * (y @ torch.linalg.solve(noisy, y) + torch.logdet(2 * math.pi * noisy))
        expected = evidence - 0.5 * (kernel.diag(t[:, None]) - Q.diagonal()).sum() / 0.05
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
