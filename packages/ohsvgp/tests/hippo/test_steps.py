"""Steps in time against a dense solver of differential equations and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from ohsvgp.hippo.features import lagt_projections, legs_projections
from ohsvgp.hippo.steps import Method, evolve, step
from ohsvgp.hippo.transitions import (
    System,
    fout_system,
    lagt_system,
    legs_system,
    legt_system,
)

M, W = 7, torch.tensor([-2.0, 0.4, 3.0], dtype=torch.float64)


def _signal(times: torch.Tensor) -> torch.Tensor:
    phase = times[:, None] * W
    return torch.cat([phase.cos(), phase.sin()], -1)


def _closed_legs(t: float) -> torch.Tensor:
    Z = legs_projections(M, W, t)
    return torch.cat([Z.real, Z.imag], -1)


def _evolve(system: System, c: torch.Tensor, num_steps: int, method: Method) -> torch.Tensor:
    return evolve(system, c, _signal, 0.5, 2.0, num_steps=num_steps, method=method)


def _solved(system: System, c: torch.Tensor) -> np.ndarray:
    A, B, shape = system.A.numpy(), system.B.numpy(), c.shape

    def slope(t: float, flat: np.ndarray) -> np.ndarray:
        f = _signal(torch.tensor([t], dtype=torch.float64))[0].numpy()
        return (system.rate(t) * (A @ flat.reshape(shape) + np.outer(B, f))).ravel()

    result = solve_ivp(slope, (0.5, 2.0), c.numpy().ravel(), rtol=1e-11, atol=1e-12)
    return result.y[:, -1].reshape(shape)


@pytest.mark.parametrize(
    "system",
    [legs_system(M), legt_system(M, 0.9), lagt_system(M, 0.6), fout_system(M, 0.9)],
    ids=["LegS", "LegT", "LagT", "FouT"],
)
@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("bilinear", 2), ("exact", 2)])
def test_steps_converge_to_the_solution_at_their_order(system: System, method: Method, order: int):
    start = _closed_legs(0.5)  # any start will do
    truth = _solved(system, start)
    coarse, fine = (
        np.abs(_evolve(system, start, n, method).numpy() - truth).max()
        for n in ((800, 1600) if order == 1 else (160, 320))
    )
    assert coarse / fine == pytest.approx(2**order, rel=0.15)
    assert fine < (0.1 if order == 1 else 2e-3)


def test_legs_steps_from_time_zero_converge_to_the_closed_form():
    start = torch.zeros(M, 6, dtype=torch.float64)
    start[0, :3] = 1.0  # (f(0), 0, ...): cosines are one, sines zero

    def error(n: int, method: Method) -> float:
        c = evolve(legs_system(M), start, _signal, 0.0, 2.0, num_steps=n, method=method)
        return float((c - _closed_legs(2.0)).abs().max())

    for method, ratio in (("euler", 2.0), ("bilinear", 4.0), ("exact", 4.0)):
        coarse, fine = error(200, method), error(400, method)
        assert coarse / fine == pytest.approx(ratio, rel=0.1)
        assert fine < (2e-2 if method == "euler" else 3e-4)


def test_lagt_steps_converge_to_the_closed_form():
    def closed(t: float) -> torch.Tensor:
        Z = lagt_projections(M, W, t, 0.6)
        return torch.cat([Z.real, Z.imag], -1)

    c = _evolve(lagt_system(M, 0.6), closed(0.5), 500, "exact")
    np.testing.assert_allclose(c, closed(2.0), rtol=0, atol=2e-5)


def test_held_input_is_solved_without_error_however_long_the_step():
    def constant(times: torch.Tensor) -> torch.Tensor:
        return torch.full((len(times), 1), 3.0, dtype=torch.float64)

    for system in (legs_system(M), legt_system(M, 0.9), lagt_system(M, 0.6)):
        start = torch.linspace(-1, 1, M, dtype=torch.float64)[:, None]
        one = evolve(system, start, constant, 0.5, 2.0, num_steps=1, method="exact")
        many = evolve(system, start, constant, 0.5, 2.0, num_steps=50, method="exact")
        np.testing.assert_allclose(one, many, rtol=0, atol=1e-12)


def test_long_euler_steps_of_legs_explode_and_the_others_do_not():
    def largest(method: Method) -> float:
        start = torch.zeros(60, 6, dtype=torch.float64)
        start[0, :3] = 1.0
        c = evolve(legs_system(60), start, _signal, 0.0, 2.0, num_steps=20, method=method)
        return float(c.abs().max())

    assert largest("euler") > 1e6
    assert largest("bilinear") < 1.5
    assert largest("exact") < 1.5


def test_euler_step_is_the_recurrence_of_the_thesis():
    # c_{k+1} = (I + Δ A(t_k)) c_k + Δ B(t_k) f_k
    system = legs_system(M)
    got = step(system, "euler", 0.5, 0.1)
    np.testing.assert_allclose(got.transition, torch.eye(M) + 0.1 / 0.5 * system.A)
    np.testing.assert_allclose(got.inputs[0], 0.2 * system.B)


def test_signals_of_several_heads_are_solved_side_by_side():
    def heads(times: torch.Tensor) -> torch.Tensor:
        return torch.stack([_signal(times), 2 * _signal(times)])

    start = _closed_legs(0.5)
    both = evolve(
        legs_system(M), torch.stack([start, 2 * start]), heads, 0.5, 2.0,
        num_steps=300, method="exact",
    )  # fmt: skip
    alone = _evolve(legs_system(M), start, 300, "exact")
    np.testing.assert_allclose(both, torch.stack([alone, 2 * alone]), rtol=1e-12, atol=1e-13)


def test_what_cannot_be_solved_is_refused():
    c = torch.zeros(M, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="num_steps=0"):
        _evolve(legs_system(M), c, 0, "euler")
    with pytest.raises(ValueError, match="after start"):
        evolve(legs_system(M), c, _signal, 1.0, 1.0, num_steps=1, method="euler")
    assert math.isfinite(float(step(legs_system(M), "bilinear", 0.0, 0.1).transition.sum()))
