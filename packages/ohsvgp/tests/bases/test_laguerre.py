"""LagT against closed forms and Gauss-Laguerre sums."""

import numpy as np
import pytest
import torch
from scipy import special

from ohsvgp.bases.laguerre import LagT
from probseq.kernels import RBF

KERNEL = RBF(
    1,
    lengthscale=torch.tensor(1.1, dtype=torch.float64),
    outputscale=torch.tensor(0.9, dtype=torch.float64),
)


def functional(basis, length):
    with torch.no_grad():
        inducing = basis.inducing(KERNEL, length)
    return inducing.nodes[:, 0].numpy(), inducing.weights.numpy()


@pytest.mark.parametrize("M", [1, 2, 30])
@pytest.mark.parametrize("omega", [0.0, 0.4, 3.0])
def test_a_wave_has_the_coefficients_of_the_closed_form(omega, M):
    """∫ e^{iω(t−τs)} L_m(s) e^{−s} ds = e^{iωt} (iωτ)^m / (1 + iωτ)^{m+1}."""
    t, tau, m = 5.0, 1.7, np.arange(M)
    s, W = functional(LagT(M, tau), t)
    z = 1j * omega * tau
    closed = np.exp(1j * omega * t) * (z / (1 + z)) ** m / (1 + z)
    np.testing.assert_allclose(W @ np.exp(1j * omega * s), closed, atol=1e-12)


def test_K_uu_equals_a_gauss_laguerre_sum():
    tau = 0.8
    with torch.no_grad():
        K_uu = LagT(6, tau).inducing(KERNEL, 3.0).covariance(KERNEL).numpy()
    s, w = special.roots_laguerre(170)
    Phi = np.stack([special.eval_laguerre(m, s) * w for m in range(6)])
    K = 0.9 * np.exp(-0.5 * (tau * (s[:, None] - s) / 1.1) ** 2)
    np.testing.assert_allclose(K_uu, Phi @ K @ Phi.T, atol=1e-10)


def test_K_uu_of_a_wave_process_is_exact_for_many_polynomials():
    """E[c c*] of f = cos(ωs)a + sin(ωs)b, from the closed form; a Gauss-Laguerre rule overflows."""
    M, tau, omega = 150, 1.0, 1.3
    s, W = functional(LagT(M, tau), 2.0)
    z = 1j * omega * tau
    c = (z / (1 + z)) ** np.arange(M) / (1 + z)
    quadrature = W @ np.cos(omega * (s[:, None] - s)) @ W.T
    np.testing.assert_allclose(quadrature, np.real(np.outer(c, c.conj())), atol=1e-12)


def test_covariance_is_constant_in_time():
    basis = LagT(15, 2.0)
    early, late = (basis.inducing(KERNEL, t).covariance(KERNEL) for t in (0.0, 40.0))
    assert (early - late).abs().max().item() < 1e-12


def test_functions_are_laguerre_polynomials_dual_to_the_weights():
    basis, t = LagT(8, 2.0), 5.0
    s, W = functional(basis, t)
    g = basis.functions(KERNEL, torch.from_numpy(s)[:, None], t).numpy()
    np.testing.assert_allclose(W @ g.T, np.eye(8), atol=1e-10)
    x = torch.linspace(-5, 5, 9, dtype=torch.float64)[:, None]
    expected = [special.eval_laguerre(m, (t - x[:, 0].numpy()) / 2) for m in range(8)]
    np.testing.assert_allclose(basis.functions(KERNEL, x, t), np.stack(expected), rtol=1e-10)
