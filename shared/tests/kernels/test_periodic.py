"""Kernels of repetition and white noise, against scikit-learn, GPyTorch and their spectra."""

import math

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.gaussian_process import kernels as sklearn_kernels

from probseq.kernels import RBF, Periodic, RationalQuadratic, White
from probseq.testing.kernels import KernelSuite

torch_double = {"dtype": torch.float64}


class TestPeriodic(KernelSuite):
    # In radians of the period: at a hundredth the phase itself loses digits.
    float32_rtol = 5e-4
    period = 3.1

    def make_kernel(self, batch_shape, dim):
        return Periodic(dim, batch_shape=batch_shape, period=self.period)

    def random_kernel(self, batch_shape, dim, seed=0):
        kernel = super().random_kernel(batch_shape, dim, seed)
        kernel.raw_period.data.fill_(math.log(self.period))
        return kernel

    def reference(self, x, z, lengthscale, outputscale):
        sines = np.sin(np.pi * (x - z) / self.period) / lengthscale
        return outputscale * math.exp(-2 * np.sum(sines**2))


class TestRationalQuadratic(KernelSuite):
    alpha = 0.8

    def make_kernel(self, batch_shape, dim):
        return RationalQuadratic(dim, batch_shape=batch_shape, alpha=self.alpha)

    def random_kernel(self, batch_shape, dim, seed=0):
        kernel = super().random_kernel(batch_shape, dim, seed)
        kernel.raw_alpha.data.fill_(math.log(self.alpha))
        return kernel

    def reference(self, x, z, lengthscale, outputscale):
        square = np.sum(((x - z) / lengthscale) ** 2)
        return outputscale * (1 + square / (2 * self.alpha)) ** -self.alpha


def points(n, d=1, seed=0):
    return np.random.default_rng(seed).normal(scale=3, size=(n, d))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            Periodic(1, period=2.3, lengthscale=0.7).double(),
            sklearn_kernels.ExpSineSquared(length_scale=0.7, periodicity=2.3),
        ),
        (
            RationalQuadratic(1, alpha=0.6, lengthscale=1.7).double(),
            sklearn_kernels.RationalQuadratic(length_scale=1.7, alpha=0.6),
        ),
    ],
)
def test_equals_scikit_learn(ours, theirs):
    x, z = points(6), points(5, seed=1)
    found = ours(torch.from_numpy(x), torch.from_numpy(z)).detach().numpy()
    np.testing.assert_allclose(found, theirs(x, z), rtol=2e-6, atol=1e-7)


def test_a_rational_quadratic_of_large_alpha_is_an_rbf():
    x = torch.from_numpy(points(6, 2))
    rq = RationalQuadratic(2, alpha=1e7).double()
    torch.testing.assert_close(rq(x, x), RBF(2).double()(x, x), rtol=0, atol=1e-6)


def test_white_noise_is_one_value_for_each_input():
    x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]], **torch_double)
    kernel = White(2, outputscale=0.3).double()
    expected = 0.3 * torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]], **torch_double)
    torch.testing.assert_close(kernel(x, x).detach(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(kernel.diag(x), kernel(x, x).diagonal())
    assert kernel.continuous is None


def above(kernel, band):
    """Share of the variance above an angular frequency, by the spectrum in closed form."""
    if isinstance(kernel, Periodic):
        a = kernel.lengthscale.item() ** -2
        first = math.floor(band * kernel.period.item() / (2 * math.pi)) + 1
        return 2 * sum(special.ive(n, a) for n in range(first, first + 400))
    if isinstance(kernel, RBF):
        return special.erfc(band * kernel.lengthscale.item() / math.sqrt(2))
    # Rational quadratic: a gamma mixture of normal spectra.
    alpha, ell = kernel.alpha.item(), kernel.lengthscale.item()
    nodes, weights = special.roots_genlaguerre(150, alpha - 1)
    tail = special.erfc(band * ell / np.sqrt(2 * nodes / alpha))
    return float(weights @ tail) / math.gamma(alpha)


@pytest.mark.parametrize(
    "kernel",
    [
        *(Periodic(1, period=2.0, lengthscale=ell) for ell in (0.05, 0.3, 1.0, 5.0)),
        *(RBF(1, lengthscale=ell) for ell in (0.1, 3.0)),
        *(RationalQuadratic(1, alpha=alpha, lengthscale=2.0) for alpha in (0.5, 1.0, 5.0)),
    ],
)
def test_the_band_leaves_no_more_than_the_share_and_is_not_far_above(kernel):
    for share in (1e-4, 1e-10):
        (term,) = kernel.double().spectra(share)
        assert above(kernel, 1.001 * term.band) <= share
        assert above(kernel, 0.6 * term.band) > share or term.band * 2 < 2 * math.pi * 3
