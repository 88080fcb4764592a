"""Propagation of LegS inducing covariances against direct quadrature."""

import math

import numpy as np
import torch
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.special import eval_legendre

from ohsvgp.bases import LegS
from ohsvgp.hippo.covariance import block_covariance, legs_propagator
from ohsvgp.hippo.legendre import gauss_legendre, scaled_legendre
from ohsvgp.hippo.transitions import legs_system
from ohsvgp.inducing import PointFunctional
from probseq.kernels import RBF

M, T1, T2 = 12, 1.3, 2.1


def _kernel() -> RBF:
    return RBF(1, lengthscale=0.7, outputscale=1.4).double()


def legs_increment(size: int, t1: float, t2: float, num_nodes: int = 48) -> PointFunctional:
    """v = (1/t2) ∫_{t1}^{t2} f(s) g^{(t2)}(s) ds, what new time adds to R u(t1)."""
    x, w = gauss_legendre(num_nodes)
    s = t1 + 0.5 * (t2 - t1) * (1 + x)
    return PointFunctional(s[:, None], scaled_legendre(size, 2 * s / t2 - 1) * w * (t2 - t1) / t2)


def covariance_rate(K_uu: torch.Tensor, c: torch.Tensor, t: float) -> torch.Tensor:
    """dK_uu/dt = A(t) K_uu + K_uu A(t)ᵀ + (c bᵀ + b cᵀ)/t (thesis C.5, corrected)."""
    A, b = (system := legs_system(K_uu.shape[-1])).A, system.B
    half = A @ K_uu + torch.outer(c, b)
    return (half + half.mT) / t


def _projection(f, m: int, end: float, start: float = 0.0) -> float:
    """(1/end) ∫_start^end f g_m, by scipy."""
    value, _ = quad(
        lambda s: f(s) * math.sqrt(2 * m + 1) * eval_legendre(m, 2 * s / end - 1),
        start, end, epsabs=1e-13, epsrel=1e-13, limit=200,
    )  # fmt: skip
    return value / end


def test_propagated_and_added_projections_are_those_of_the_longer_window():
    def f(s):
        return math.exp(-s) * math.cos(5 * s)

    old = torch.tensor([_projection(f, m, T1) for m in range(M)], dtype=torch.float64)
    new = [_projection(f, m, T2) for m in range(M)]
    increment = legs_increment(M, T1, T2)
    values = torch.tensor([f(s) for s in increment.nodes[:, 0].tolist()], dtype=torch.float64)
    got = legs_propagator(M, T1, T2) @ old + increment.weights @ values
    np.testing.assert_allclose(got, new, rtol=0, atol=1e-13)


def test_propagator_is_the_exponential_of_a_in_logarithmic_time():
    A = legs_system(M).A
    np.testing.assert_allclose(
        legs_propagator(M, T1, T2), expm(A.numpy() * math.log(T2 / T1)), rtol=0, atol=1e-10
    )


def test_propagator_has_norm_root_of_the_ratio_of_windows():
    for t1, t2 in ((1.0, 1.05), (1.0, 2.0), (0.1, 3.0)):
        norm = float(torch.linalg.matrix_norm(legs_propagator(80, t1, t2), 2))
        assert norm <= math.sqrt(t1 / t2) * (1 + 1e-12)
        assert norm > 0.999 * math.sqrt(t1 / t2)


def test_block_step_gives_the_covariance_of_direct_quadrature():
    kernel = _kernel()
    old = LegS(M, num_nodes=120).inducing(kernel, T1)
    increment = legs_increment(M, T1, T2, num_nodes=120)
    with torch.no_grad():
        got = block_covariance(
            old.covariance(kernel),
            legs_propagator(M, T1, T2),
            old.cross_inducing(kernel, increment),
            increment.covariance(kernel),
        )
        direct = LegS(M, num_nodes=120).inducing(kernel, T2).covariance(kernel)
    np.testing.assert_allclose(got, direct, rtol=0, atol=1e-12)


def _finite_difference(set_at, t: float, step: float = 1e-4) -> torch.Tensor:
    # Fourth-order central differences.
    a, b, c, d = (set_at(t + k * step) for k in (-2, -1, 1, 2))
    return (a - 8 * b + 8 * c - d) / (12 * step)


def test_corrected_equation_of_k_uu_holds_and_the_printed_one_fails():
    kernel = _kernel()

    def K_uu(t: float) -> torch.Tensor:
        return LegS(M, num_nodes=80).inducing(kernel, t).covariance(kernel).detach()

    rate = _finite_difference(K_uu, T1)
    with torch.no_grad():
        end = torch.full((1, 1), T1, dtype=torch.float64)
        c = LegS(M, num_nodes=80).inducing(kernel, T1).cross(kernel, end)[:, 0]
    ours = covariance_rate(K_uu(T1), c, T1)
    np.testing.assert_allclose(ours, rate, rtol=0, atol=1e-8)
    # C.5 and C.6 as printed: ones in the place of b.
    A = legs_system(M).A
    ones = torch.ones(M, dtype=torch.float64)
    printed = A @ K_uu(T1) + K_uu(T1) @ A.mT + torch.outer(c, ones) + torch.outer(ones, c)
    residual = torch.linalg.matrix_norm(printed / T1 - rate) / torch.linalg.matrix_norm(rate)
    assert residual > 0.5


def test_equation_of_k_fu_holds():
    kernel = _kernel()
    x = torch.tensor([[0.1], [0.9], [1.7]], dtype=torch.float64)

    def K_fu(t: float) -> torch.Tensor:
        return LegS(M, num_nodes=80).inducing(kernel, t).cross(kernel, x).mT.detach()

    k_t = kernel(x, torch.full((1, 1), T1, dtype=torch.float64))[:, 0].detach()
    # dK_fu/dt = K_fu A(t)ᵀ + k(X, t) B(t)ᵀ (thesis Eq. 4.10).
    A, b = (system := legs_system(M)).A, system.B
    ours = (K_fu(T1) @ A.mT + torch.outer(k_t, b)) / T1
    np.testing.assert_allclose(ours, _finite_difference(K_fu, T1), rtol=0, atol=1e-8)
