"""Closed forms of projected Fourier features against quadrature and scipy."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from numpy.polynomial import legendre
from scipy.special import eval_laguerre, eval_legendre, spherical_jn

from ohsvgp.hippo.features import (
    fout_projections,
    lagt_projections,
    legs_projections,
    legt_projections,
    spherical_bessel,
)

M, T, THETA, TAU = 9, 2.3, 1.7, 0.4
W = torch.tensor([-7.0, -0.3, 0.0, 1e-9, 0.5, 3.0, 11.0, 40.0], dtype=torch.float64)


leggauss = lru_cache(legendre.leggauss)


def _integral(g, start: float, end: float) -> complex:
    x, w = leggauss(160)
    s = 0.5 * (start + end) + 0.5 * (end - start) * x
    return complex((0.5 * (end - start) * w * g(s)).sum())


def test_spherical_bessel_functions_are_those_of_scipy_on_both_sides_of_the_turning_point():
    a = torch.cat([
        torch.tensor([0.0, 1e-300, 1e-9, 0.3, 0.5, 1.0, math.pi], dtype=torch.float64),
        torch.linspace(0, 700, 1501, dtype=torch.float64),
        torch.arange(300, dtype=torch.float64),
        torch.arange(300, dtype=torch.float64) + 1e-9,
    ])  # fmt: skip
    for size in (1, 2, 3, 40, 250):
        expected = np.stack([spherical_jn(m, a.numpy()) for m in range(size)])
        np.testing.assert_allclose(spherical_bessel(size, a), expected, rtol=0, atol=5e-15)
    # Relative accuracy where the functions are small.
    small = torch.tensor([5.0, 20.0], dtype=torch.float64)
    expected = np.stack([spherical_jn(m, small.numpy()) for m in range(60)])
    np.testing.assert_allclose(spherical_bessel(60, small)[40:], expected[40:], rtol=1e-12)


def test_spherical_bessel_functions_have_gradients_that_are_right():
    a = torch.tensor([-3.3, 0.2, 0.7, 4.1, 12.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: spherical_bessel(8, a), a)
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(spherical_bessel(3, zero)[1].sum(), zero)
    assert float(slope) == pytest.approx(1 / 3)


def test_legs_and_legt_are_integrals_against_legendre_polynomials():
    for got, start, end in (
        (legs_projections(M, W, T), 0.0, T),
        (legt_projections(M, W, T, THETA), T - THETA, T),
    ):
        expected = [[
            _integral(lambda s, w=w, m=m, a=start, e=end: np.exp(1j * w * s) * math.sqrt(2 * m + 1)
                      * eval_legendre(m, 2 * (s - a) / (e - a) - 1) / (e - a), start, end)
            for w in W.tolist()] for m in range(M)]  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-13)


def test_lagt_is_the_integral_against_laguerre_polynomials():
    w = W[:-2]  # quadrature resolves these
    expected = [[
        _integral(lambda a, w=w, m=m: np.exp(1j * w * (T - TAU * a)) * eval_laguerre(m, a)
                  * np.exp(-a), 0, 60)
        for w in w.tolist()] for m in range(M)]  # fmt: skip
    np.testing.assert_allclose(lagt_projections(M, w, T, TAU), expected, rtol=0, atol=5e-12)
    # The formula itself, where zero to the power of zero does not arise.
    w = W[W != 0]
    a = 1j * w * TAU
    power = torch.arange(M)[:, None]
    formula = torch.exp(1j * w * T) * a**power / (1 + a) ** (power + 1)
    torch.testing.assert_close(lagt_projections(M, w, T, TAU), formula, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 8, 9])
def test_fout_is_the_integral_against_pairs_of_cosines_and_sines(size: int):
    def g(m, s):
        phase = 2 * math.pi * ((m + 1) // 2) * (T - s) / THETA
        if m == 0:
            return np.ones_like(s)
        return math.sqrt(2) * (np.cos(phase) if m % 2 else np.sin(phase))

    expected = [[
        _integral(lambda s, w=w, m=m: np.exp(1j * w * s) * g(m, s) / THETA, T - THETA, T)
        for w in W.tolist()] for m in range(size)]  # fmt: skip
    np.testing.assert_allclose(fout_projections(size, W, T, THETA), expected, rtol=0, atol=1e-13)


def test_windows_of_no_length_hold_the_value_itself():
    Z = legs_projections(M, W, 0.0)
    assert float((Z[0] - 1).abs().max()) == 0
    assert float(Z[1:].abs().max()) == 0
