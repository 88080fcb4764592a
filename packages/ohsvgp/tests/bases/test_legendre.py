"""LegS and LegT against closed forms, other quadratures, sparse regression and the ODE of K_uu."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.legendre import LegS, LegT
from probseq.kernels import RBF, Matern32


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def rbf():
    return RBF(1, lengthscale=number(0.7), outputscale=number(1.3))


def functional(basis, length, kernel=None):
    """Nodes (Q,) and weights (M, Q) as numpy arrays."""
    with torch.no_grad():
        inducing = basis.inducing(kernel or rbf(), length)
    return inducing.nodes[:, 0].numpy(), inducing.weights.numpy()


def phi(m, s, start, width):
    """√(2m+1) P_m on the window, times the measure's density."""
    return math.sqrt(2 * m + 1) * special.eval_legendre(m, 2 * (s - start) / width - 1) / width


@pytest.mark.parametrize("omega", [0.0, 0.3, 4.0, 30.0])
def test_a_wave_has_the_coefficients_of_the_closed_form_with_spherical_bessel_functions(omega):
    M, t, theta = 30, 5.0, 3.0
    m = np.arange(M)
    for basis, width in ((LegS(M, num_nodes=160), t), (LegT(M, theta, num_nodes=160), theta)):
        s, W = functional(basis, t)
        middle = t - width / 2
        bessel = special.spherical_jn(m, omega * width / 2)
        closed = np.sqrt(2 * m + 1) * 1j**m * np.exp(1j * omega * middle) * bessel
        np.testing.assert_allclose(W @ np.exp(1j * omega * s), closed, atol=1e-12)


def test_covariances_of_the_rbf_equal_adaptive_quadrature():
    t, x = 4.0, 1.3
    kernel = rbf()

    def k(a, b):
        return 1.3 * math.exp(-0.5 * ((a - b) / 0.7) ** 2)

    with torch.no_grad():
        inducing = LegS(8).inducing(kernel, t)
        K_uu = inducing.covariance(kernel).numpy()
        K_uf = inducing.cross(kernel, torch.tensor([[x]], dtype=torch.float64)).numpy()
    # The double integral as a product rule on 20 panels of 12 nodes.
    nodes, weights = special.roots_legendre(12)
    panels = np.linspace(0, t, 21)
    s = (panels[:-1, None] + (nodes + 1) * t / 40).ravel()
    w = np.tile(weights * t / 40, 20)
    Phi = np.stack([phi(m, s, 0, t) * w for m in range(8)])
    K = 1.3 * np.exp(-0.5 * ((s[:, None] - s) / 0.7) ** 2)
    np.testing.assert_allclose(K_uu, Phi @ K @ Phi.T, atol=1e-13)
    for m in (0, 3, 7):
        value, _ = integrate.quad(lambda b, m=m: k(x, b) * phi(m, b, 0, t), 0, t, epsabs=1e-14)
        assert abs(K_uf[m, 0] - value) < 1e-12


def test_covariances_of_a_rough_kernel_converge_to_adaptive_quadrature():
    kernel = Matern32(1, lengthscale=number(0.7))
    x, errors = 1.3, []
    value, _ = integrate.quad(
        lambda s: (
            (1 + math.sqrt(3) * abs(s - x) / 0.7)
            * math.exp(-math.sqrt(3) * abs(s - x) / 0.7)
            * phi(4, s, 0, 4.0)
        ),
        *(0, 4.0),
        points=[x],
        epsabs=1e-14,
    )
    for Q in (20, 80, 320):
        inducing = LegS(5, num_nodes=Q).inducing(kernel, 4.0)
        K_uf = inducing.cross(kernel, torch.tensor([[x]], dtype=torch.float64))
        errors.append(abs(K_uf[4, 0].item() - value))
    assert errors[1] < errors[0] / 4
    assert errors[2] < 1e-6


def test_as_many_nodes_as_coefficients_make_sparse_regression_at_the_legendre_nodes():
    rng = np.random.default_rng(0)
    M, noise = 14, 0.05
    x = np.sort(rng.uniform(0, 6, 60))
    y = np.sin(2 * x) + 0.2 * rng.standard_normal(60)
    gp = OnlineGP(rbf(), Gaussian(noise), LegS(M, num_nodes=M), t0=0.0, rel_jitter=1e-13)
    info = gp.update(x, y)
    # Titsias 2009 with inducing points at the roots of P_M on [0, last x], written out densely.
    z = (special.roots_legendre(M)[0] + 1) * x[-1] / 2
    new = np.linspace(0, 6, 17)

    def k(a, b):
        return 1.3 * np.exp(-0.5 * ((a[:, None] - b) / 0.7) ** 2)

    K_zz, K_zx, K_zs = k(z, z), k(z, x), k(z, new)
    S = np.linalg.inv(K_zz + K_zx @ K_zx.T / noise)
    mean = K_zs.T @ S @ K_zx @ y / noise
    variance = 1.3 - np.sum(K_zs * np.linalg.solve(K_zz, K_zs), 0) + np.sum(K_zs * (S @ K_zs), 0)
    explained = K_zx.T @ np.linalg.solve(K_zz, K_zx)
    C = explained + noise * np.eye(60)
    bound = -0.5 * (
        y @ np.linalg.solve(C, y)
        + np.linalg.slogdet(2 * np.pi * C)[1]
        + np.trace(1.3 * np.eye(60) - explained) / noise
    )
    predicted = gp.predict(new)
    np.testing.assert_allclose(predicted.mean, mean, atol=1e-8)
    np.testing.assert_allclose(predicted.variance, variance, atol=1e-8)
    assert abs(float(info.energy) - bound) < 1e-6


def test_covariance_of_the_sliding_window_is_constant_in_time_and_of_the_growing_one_is_not():
    kernel = rbf()
    for basis, constant in ((LegT(12, 3.0), True), (LegS(12), False)):
        early, late = (basis.inducing(kernel, t).covariance(kernel) for t in (1.0, 50.0))
        assert ((early - late).abs().max().item() < 1e-12) == constant


def test_a_window_of_no_length_keeps_the_value_alone():
    s, W = functional(LegS(9), 0.0)
    np.testing.assert_array_equal(s, 0.0)
    np.testing.assert_allclose(W.sum(-1), np.eye(9)[0], atol=1e-13)
    functions = LegS(9).functions(rbf(), torch.zeros(1, 1, dtype=torch.float64), 0.0)
    assert torch.isfinite(functions).all()
    # The window's one point is its end, where all polynomials are one.
    np.testing.assert_allclose(functions[:, 0], np.sqrt(2 * np.arange(9) + 1), rtol=1e-14)


@pytest.mark.parametrize(("basis", "start"), [(LegS(20), 0.0), (LegT(20, 3.0), 2.0)])
def test_functions_are_the_scaled_polynomials_of_scipy(basis, start):
    x = torch.linspace(start, 5.0, 11, dtype=torch.float64)[:, None]
    width = 5.0 - start
    expected = np.stack([width * phi(m, x[:, 0].numpy(), start, width) for m in range(20)])
    np.testing.assert_allclose(basis.functions(rbf(), x, 5.0), expected, atol=1e-12)
