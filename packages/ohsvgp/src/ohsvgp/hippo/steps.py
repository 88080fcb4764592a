"""Steps in time that solve HiPPO's linear systems (thesis Eq. 2.11, 4.17).

A step is c ← Φ c + Σ_i γ_i f(t + h ξ_i), for any number of signals at once:

- "euler": Φ = I + h A(t), input at the start. First order, and unstable where h is long.
- "bilinear": the trapezium rule. Second order, stable for any h.
- "exact": no error but that the input is held, at its value in the middle. Second order, stable
  for any h.

A = A(t) varies as 1/t for LegS, whose exact Φ is the propagator R(t→t+h). Its projection of a
constant is e_0 in every window, so a held input adds e_0 − R e_0. Held is the middle and not, as
in zero-order hold, the start, since the Fourier features can be had at any time.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.hippo.covariance import legs_propagator
from ohsvgp.hippo.transitions import System

Method = Literal["euler", "bilinear", "exact"]

# Input points of each method, as a part of the step.
_POINTS: dict[Method, tuple[float, ...]] = {
    "euler": (0.0,),
    "bilinear": (0.0, 1.0),
    "exact": (0.5,),
}
# Signals of so many steps are evaluated together.
_CHUNK = 256


class LinearStep(NamedTuple):
    """c ← Φ c + γ f."""

    transition: Float[Tensor, "m m"]  # Φ, shape (M, M)
    inputs: Float[Tensor, "p m"]  # γ, one row for each input point of the method, shape (P, M)


def step(system: System, method: Method, t: float, h: float) -> LinearStep:
    """Return the matrices of one step from t to t + h."""
    A, B = system.A, system.B
    M = A.shape[-1]
    identity = torch.eye(M, dtype=A.dtype, device=A.device)
    if method == "euler":
        scale = h * system.rate(t)
        return LinearStep(identity + scale * A, scale * B[None])
    if method == "bilinear":
        # (I − ½h A(t + h)) c' = (I + ½h A(t)) c + ½h (B(t) f + B(t + h) f').
        before, after = 0.5 * h * system.rate(t), 0.5 * h * system.rate(t + h)
        right = torch.cat([identity + before * A, before * B[:, None], after * B[:, None]], -1)
        solved = torch.linalg.solve(identity - after * A, right)
        return LinearStep(solved[:, :M], solved[:, M:].mT)
    if system.growing:  # R(t→t+h), and e_0 − R e_0 for the held input
        R = legs_propagator(M, t, t + h, like=A)
        return LinearStep(R, (identity[:, 0] - R[:, 0])[None])
    # exp(h [A B; 0 0]) = [Φ γ; 0 1].
    joint = torch.zeros(M + 1, M + 1, dtype=A.dtype, device=A.device)
    joint[:M] = torch.cat([A, B[:, None]], -1)
    solved = torch.linalg.matrix_exp(h * joint)
    return LinearStep(solved[:M, :M], solved[:M, M:].mT)


def evolve(
    system: System,
    c: Float[Tensor, "*b m g"],
    signal: Callable[[Float[Tensor, " s"]], Float[Tensor, "*b s g"]],
    start: float,
    end: float,
    *,
    num_steps: int,
    method: Method,
) -> Float[Tensor, "*b m g"]:
    """Carry the coefficients of all signals to ``end`` by equal steps, one product a step.

    The coefficients at ``start`` have a column for each signal; the method is "euler", "bilinear"
    or "exact".
    """
    if num_steps < 1 or not end > start:
        raise ValueError(
            f"end must come after start by at least one step, got start={start}, end={end}, "
            f"num_steps={num_steps}"
        )
    h = (end - start) / num_steps
    constant = None if system.growing else step(system, method, start, h)
    for first in range(0, num_steps, _CHUNK):
        index = torch.arange(first, min(first + _CHUNK, num_steps), dtype=torch.float64)
        values = [
            signal((start + h * (index + point)).to(device=c.device, dtype=c.dtype))
            for point in _POINTS[method]
        ]
        inputs = torch.stack(values, dim=-2)  # (*b, steps, points, signals)
        for k in range(len(index)):
            now = constant or step(system, method, start + h * (first + k), h)
            c = now.transition @ c + now.inputs.mT @ inputs[..., k, :, :]
    return c
