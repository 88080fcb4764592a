"""FouT and Cosine against closed forms; the dual functions of the cosines."""

import numpy as np
import pytest
import torch

from ohsvgp.bases.fourier import Cosine, FouT
from probseq.kernels import RBF


def rbf(lengthscale=0.7, **options):
    ell, scale = (torch.as_tensor(value, dtype=torch.float64) for value in (lengthscale, 1.3))
    return RBF(1, lengthscale=ell, outputscale=scale, **options)


def functional(basis, length, kernel=None):
    with torch.no_grad():
        inducing = basis.inducing(kernel or rbf(), length)
    return inducing.nodes[..., 0].numpy(), inducing.weights.numpy()


@pytest.mark.parametrize("M", [1, 2, 9, 12])
@pytest.mark.parametrize("omega", [0.0, 0.4, 11.0])
def test_a_wave_has_the_fourier_coefficients_of_the_closed_form(omega, M):
    """c_k = e^{iωt} e^{−id} sin d/d, d = (ωθ − 2πk)/2; pairs (c_k + c_−k)/√2, (c_k − c_−k)/√2i."""
    t, theta = 5.0, 3.0

    def c(k):
        d = (omega * theta - 2 * np.pi * k) / 2
        return np.exp(1j * (omega * t - d)) * np.sinc(d / np.pi)

    closed = [c(0)]
    for k in range(1, M):
        closed += [(c(k) + c(-k)) / np.sqrt(2), (c(k) - c(-k)) / (1j * np.sqrt(2))]
    s, W = functional(FouT(M, theta), t)
    np.testing.assert_allclose(W @ np.exp(1j * omega * s), closed[:M], atol=1e-12)


def test_fourier_covariance_is_constant_in_time_and_equals_a_composite_rule():
    kernel, basis, theta = rbf(), FouT(7, 3.0), 3.0
    early, late = (basis.inducing(kernel, t).covariance(kernel).detach() for t in (1.0, 40.0))
    assert float((early - late).abs().max()) < 1e-12
    nodes, weights = np.polynomial.legendre.leggauss(12)
    panels = np.linspace(0, theta, 21)
    age = (panels[:-1, None] + (nodes + 1) * theta / 40).ravel()
    w = np.tile(weights / 40, 20)
    waves = [np.ones_like(age)]
    for k in (1, 2, 3):
        phase = 2 * np.pi * k * age / theta
        waves += [np.sqrt(2) * np.cos(phase), np.sqrt(2) * np.sin(phase)]
    Phi = np.stack(waves) * w
    K = 1.3 * np.exp(-0.5 * ((age[:, None] - age) / 0.7) ** 2)
    np.testing.assert_allclose(early, Phi @ K @ Phi.T, atol=1e-13)


def test_fourier_functions_are_orthonormal_and_run_back_in_time():
    basis, t = FouT(10, 3.0), 5.0
    s, W = functional(basis, t)
    g = basis.functions(rbf(), torch.from_numpy(s)[:, None], t).numpy()
    np.testing.assert_allclose(W @ g.T, np.eye(10), atol=1e-12)
    quarter = torch.tensor([[t - 0.75]], dtype=torch.float64)
    expected = [1.0, 0.0, np.sqrt(2), -np.sqrt(2), 0.0]
    np.testing.assert_allclose(basis.functions(rbf(), quarter, t)[:5, 0], expected, atol=1e-12)


@pytest.mark.parametrize("omega", [0.0, 0.4, 11.0])
def test_a_wave_has_the_cosine_coefficients_of_the_closed_form(omega):
    """(1/T)∫ e^{iωx} cos κ(x + ℓ) dx, κ = πn/(T + 2ℓ), as a sum of two exponential integrals."""
    T, ell, M = 5.0, 0.7, 20
    kappa = np.pi * np.arange(M) / (T + 2 * ell)

    def mean_wave(a):
        return np.exp(0.5j * a * T) * np.sinc(a * T / (2 * np.pi))

    closed = 0.5 * (
        np.exp(1j * kappa * ell) * mean_wave(omega + kappa)
        + np.exp(-1j * kappa * ell) * mean_wave(omega - kappa)
    )
    s, W = functional(Cosine(M), T)
    np.testing.assert_allclose(W @ np.exp(1j * omega * s), closed, atol=1e-12)


def test_cosine_functions_project_orthogonally_although_cosines_are_not_orthogonal():
    basis, T, M = Cosine(6), 5.0, 6
    s, W = functional(basis, T)
    x = torch.from_numpy(s)[:, None]
    g = basis.functions(rbf(), x, T).numpy()
    cosines = np.cos(np.pi * np.arange(M)[:, None] * (s + 0.7) / (T + 1.4))
    density = W[0] / cosines[0]
    gram = (cosines * density) @ cosines.T
    assert np.abs(gram - np.diag(np.diag(gram))).max() > 0.1
    np.testing.assert_allclose(W @ g.T, np.eye(M), atol=1e-10)
    # What is left of a function after projection is orthogonal to every cosine.
    f = np.exp(-s)
    rest = f - (W @ f) @ g
    np.testing.assert_allclose(W @ rest, 0, atol=1e-12)
    assert (density * rest**2).sum() < 2e-3 * (density * f**2).sum()


def test_cosines_follow_every_lengthscale_of_a_batch_of_kernels():
    lengthscales = torch.tensor([0.4, 0.9, 2.0], dtype=torch.float64)[:, None, None]
    kernels = rbf(lengthscales, batch_shape=(3,))
    basis, x = Cosine(8), torch.linspace(0, 5, 4, dtype=torch.float64)[:, None]
    with torch.no_grad():
        inducing = basis.inducing(kernels, 5.0)
        K_uu, K_uf = inducing.covariance(kernels), inducing.cross(kernels, x)
        g = basis.functions(kernels, x, 5.0)
        for head, lengthscale in enumerate(lengthscales.flatten().tolist()):
            single = rbf(lengthscale)
            alone = basis.inducing(single, 5.0)
            torch.testing.assert_close(K_uu[head], alone.covariance(single), rtol=0, atol=1e-13)
            torch.testing.assert_close(K_uf[head], alone.cross(single, x), rtol=0, atol=1e-13)
            # Solutions with K_uu, of values up to several hundred.
            torch.testing.assert_close(
                g[head], basis.functions(single, x, 5.0), atol=1e-9, rtol=1e-9
            )


def test_cosines_of_a_window_of_no_length_hold_the_value_alone():
    s, W = functional(Cosine(5), 0.0)
    np.testing.assert_array_equal(s, 0.0)
    np.testing.assert_allclose(W.sum(-1), [1, 0, -1, 0, 1], atol=1e-14)
    g = Cosine(5).functions(rbf(), torch.zeros(1, 1, dtype=torch.float64), 0.0).numpy()
    # Σ u_n g_n(0) = f(0) for u = f(0)·(1, 0, −1, 0, 1).
    assert abs(g[:, 0] @ [1, 0, -1, 0, 1] - 1) < 1e-12
