"""HiPPO's linear systems against projections by quadrature."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial import legendre
from scipy.special import eval_laguerre, eval_legendre

from ohsvgp.hippo.transitions import System, fout_system, lagt_system, legs_system, legt_system

M, T, THETA, TAU = 9, 2.3, 1.7, 0.4


def _f(x):
    return np.sin(2.1 * x + 0.3) * np.exp(-0.2 * x) + 0.3 * x


leggauss = lru_cache(legendre.leggauss)


def _integral(g: Callable, start: float, end: float) -> float:
    x, w = leggauss(200)
    s = 0.5 * (start + end) + 0.5 * (end - start) * x
    return float((0.5 * (end - start) * w * g(s)).sum())


def _legs(t: float) -> np.ndarray:
    return np.array([
        math.sqrt(2 * m + 1) / t
        * _integral(lambda s, m=m: _f(s) * eval_legendre(m, 2 * s / t - 1), 0, t)
        for m in range(M)
    ])  # fmt: skip


def _legt(t: float) -> np.ndarray:
    def g(m, s):
        return math.sqrt(2 * m + 1) * eval_legendre(m, 2 * (s - t) / THETA + 1)

    return np.array([
        _integral(lambda s, m=m: _f(s) * g(m, s), t - THETA, t) / THETA for m in range(M)
    ])  # fmt: skip


def _lagt(t: float) -> np.ndarray:
    return np.array([
        _integral(lambda a, m=m: _f(t - TAU * a) * eval_laguerre(m, a) * np.exp(-a), 0, 70)
        for m in range(M)
    ])  # fmt: skip


def _fout(t: float, f: Callable = _f) -> np.ndarray:
    def g(m, s):
        if m == 0:
            return 1.0
        phase = 2 * math.pi * ((m + 1) // 2) * (t - s) / THETA
        return math.sqrt(2) * (np.cos(phase) if m % 2 else np.sin(phase))

    return np.array([
        _integral(lambda s, m=m: f(s) * g(m, s), t - THETA, t) / THETA for m in range(M)
    ])  # fmt: skip


def _rate(c: Callable, step: float = 1e-3) -> np.ndarray:
    return (c(T - 2 * step) - 8 * c(T - step) + 8 * c(T + step) - c(T + 2 * step)) / (12 * step)


def _right_side(system: System, c: np.ndarray, far: np.ndarray | None = None) -> np.ndarray:
    """dc/dt; with an input D f(t − θ) beside f(t) if its D is given."""
    value = system.A.numpy() @ c + system.B.numpy() * _f(T)
    return system.rate(T) * value + (0 if far is None else far * _f(T - THETA))


def _exact_legt() -> tuple[System, np.ndarray]:
    closure = legt_system(M, THETA)
    far = torch.tensor([(-1) ** m * math.sqrt(2 * m + 1) for m in range(M)], dtype=torch.float64)
    return System(closure.A + torch.outer(far, far) / THETA, closure.B), -far.numpy() / THETA


def _exact_fout() -> tuple[System, np.ndarray]:
    A, b = torch.zeros(M, M, dtype=torch.float64), torch.zeros(M, dtype=torch.float64)
    b[0], b[1::2] = 1.0, math.sqrt(2)
    for j in range(1, (M + 1) // 2):
        A[2 * j - 1, 2 * j], A[2 * j, 2 * j - 1] = -2 * math.pi * j / THETA, 2 * math.pi * j / THETA
    return System(A, b / THETA), -b.numpy() / THETA


@pytest.mark.parametrize(
    ("system", "far", "projections"),
    [
        (legs_system(M), None, _legs),
        (*_exact_legt(), _legt),
        (lagt_system(M, TAU), None, _lagt),
        (*_exact_fout(), _fout),
    ],
    ids=["LegS", "LegT", "LagT", "FouT"],
)
def test_projections_solve_the_exact_system(system: System, far: Any, projections: Callable):
    residual = _right_side(system, projections(T), far) - _rate(projections)
    np.testing.assert_allclose(residual, 0, atol=1e-8)


def test_closure_of_legt_is_not_exact_though_near_it_for_smooth_signals():
    residual = _right_side(legt_system(M, THETA), _legt(T)) - _rate(_legt)
    error = np.linalg.norm(residual) / np.linalg.norm(_rate(_legt))
    assert 1e-7 < error < 1e-2
    # What is missing is (f(t − θ) − Σ b̃ c)/θ in the direction b̃.
    far = np.array([(-1) ** m * math.sqrt(2 * m + 1) for m in range(M)])
    missing = far * (_f(T - THETA) - far @ _legt(T)) / THETA
    np.testing.assert_allclose(residual, missing, rtol=0, atol=1e-8)


def test_closure_of_fout_follows_a_jump_at_the_seam_with_factor_two_and_half_of_it_with_one():
    # Both ends of the window agree: any factor will do.
    def f(s):
        return np.sin(2 * math.pi * 2 * (T - s) / THETA) + 0.4

    def rates(factor: float) -> np.ndarray:
        system = fout_system(M, THETA)
        exact = _exact_fout()[0].A
        A = exact + (system.A - exact) * factor / 2
        return (A.numpy() @ _fout(T, f)) + system.B.numpy() * factor / 2 * f(T)

    truth = _rate(lambda t: _fout(t, f))
    np.testing.assert_allclose(rates(2.0), truth, rtol=0, atol=1e-8)
    np.testing.assert_allclose(rates(1.0), truth, rtol=0, atol=1e-8)

    # At a jump the series is the mean of both ends: with factor 1, as printed in A.5 and A.6, the
    # closure takes half of the jump for the whole.
    def residual(size: int, factor: float) -> float:
        b = np.array([1.0] + [math.sqrt(2) * (m % 2) for m in range(1, size)])
        age = 0.5 * (1 + leggauss(200)[0])
        waves = np.stack([np.ones_like(age)] + [
            math.sqrt(2) * (np.cos if m % 2 else np.sin)(2 * math.pi * ((m + 1) // 2) * age)
            for m in range(1, size)
        ])  # fmt: skip
        c = waves @ (0.5 * leggauss(200)[1] * _f(T - THETA * age))
        lost = _f(T) - factor * (_f(T) - b @ c)  # what the closure takes f(t − θ) for
        return abs(lost - _f(T - THETA))

    assert residual(61, 2.0) < 0.02
    assert residual(61, 1.0) > 0.4


def test_fout_closure_is_the_exact_system_with_the_lost_end_by_its_series():
    closure, (exact, far) = fout_system(M, THETA), _exact_fout()
    c = torch.from_numpy(_fout(T))
    b = exact.B * THETA
    lost = 2 * (b @ c) - _f(T)
    np.testing.assert_allclose(
        closure.A @ c + closure.B * _f(T),
        exact.A @ c + exact.B * _f(T) + torch.from_numpy(far) * lost,
        atol=1e-12,
    )


def test_legs_stands_still_at_time_zero():
    system = legs_system(M)
    assert system.rate(0.0) == 0.0
    assert system.rate(4.0) == 0.25
