"""Steps in time against a dense solver of differential equations and closed forms."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from ohsvgp.hippo.features import legs_projections
from ohsvgp.hippo.steps import Method, evolve, step
from ohsvgp.hippo.transitions import System, fout_system, lagt_system, legs_system, legt_system

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
