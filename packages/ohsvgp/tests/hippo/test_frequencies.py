"""Equally spaced Fourier features against the kernel that they stand for."""

import math

import pytest
import torch

from ohsvgp.bases import LegS
from ohsvgp.bases.recurrent import ProjectedFeatures
from ohsvgp.hippo.frequencies import EquispacedKernel, equispaced_frequencies
from probseq.kernels import RBF, Matern52

T = 9.0


def _kernel(**options) -> RBF:
    return RBF(1, lengthscale=0.4, outputscale=0.77, **options).double()


def test_few_frequencies_give_the_kernel_to_eleven_digits():
    kernel = _kernel()
    frequencies, weights = equispaced_frequencies(kernel, T)
    assert len(frequencies) == math.ceil(7 * (T / 0.4 + 7) / (2 * math.pi)) + 1 == 34
    x = torch.linspace(0, T, 300, dtype=torch.float64)[:, None]
    with torch.no_grad():
        error = EquispacedKernel(kernel, frequencies, weights)(x, x) - kernel(x, x)
    assert float(error.abs().max()) < 3e-11


def test_they_fail_beyond_the_length_they_are_made_for():
    kernel = _kernel()
    finite = EquispacedKernel(kernel, *equispaced_frequencies(kernel, T))
    period = T + 7 * 0.4
    x = torch.tensor([[0.0], [period]], dtype=torch.float64)
    assert float(finite(x, x)[0, 1].detach()) == pytest.approx(0.77, abs=1e-6)


def test_closed_forms_on_them_give_the_exact_covariances_of_legs():
    kernel = _kernel()
    finite = EquispacedKernel(kernel, *equispaced_frequencies(kernel, T))
    closed = ProjectedFeatures(LegS(20), torch.tensor(T, dtype=torch.float64))
    exact = LegS(20, num_nodes=200).inducing(kernel, T)
    x = torch.linspace(0, T, 50, dtype=torch.float64)[:, None]
    with torch.no_grad():
        K_uu = closed.covariance(finite) - exact.covariance(kernel)
        K_uf = closed.cross(finite, x) - exact.cross(kernel, x)
    assert float(K_uu.abs().max()) < 1e-10
    assert float(K_uf.abs().max()) < 1e-10


def test_heads_share_the_spacing_that_the_shortest_lengthscale_needs():
    lengthscale = torch.tensor([0.4, 1.5], dtype=torch.float64)[:, None, None]
    kernel = RBF(1, batch_shape=(2,), lengthscale=lengthscale).double()
    finite = EquispacedKernel(kernel, *equispaced_frequencies(kernel, T))
    x = torch.linspace(0, T, 100, dtype=torch.float64)[:, None]
    with torch.no_grad():
        assert float((finite(x, x) - kernel(x, x)).abs().max()) < 3e-11


def test_kernels_that_equal_spacing_does_not_suit_are_refused():
    with pytest.raises(ValueError, match="RBF"):
        equispaced_frequencies(Matern52(1), T)
    with pytest.raises(ValueError, match="dim=1"):
        equispaced_frequencies(RBF(2), T)
    with pytest.raises(ValueError, match="length"):
        equispaced_frequencies(RBF(1), -1.0)
