"""Solvers of the probability flow, the equation without noise whose end is distributed as samples.

With α = √ᾱ, σ = √(1−ᾱ) and λ = log(α/σ) of each step. The network's variances play no part.

They are diffusers' schedulers, which are the oracles of the tests, but for one thing: those keep to
second order over every leap of λ before the last. A process that is walked in fewer steps than it
has ends with a leap many times as long as the one before, over which a line through the last two
images overshoots: 20 cosine steps drew N(0.1, 0.3²) with a spread of 0.356. Such leaps are taken at
first order here, as by DDIM.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pseudovideo.diffusion.gaussian import GaussianDiffusion, split_output
from pseudovideo.spec import SolverName

# At second order a leap of λ is at most so many times the one before it (multistep solvers), or at
# most so long (Heun's method, which has the mean of the slopes at both ends).
_MAX_RATIO, _MAX_LEAP = 2.0, 2.0


class FlowSolver(NamedTuple):
    """A solver of the probability flow, for `solver` of the models' `sample`.

    Attributes:
        name: "dpm++" (Lu et al. 2022, "DPM-Solver++", algorithm 2, of order 2), "unipc" (Zhao et
            al. 2023, "UniPC", of order 2 with B(h) = e⁻ʰ − 1) or "heun" (Karras et al. 2022,
            "Elucidating the design space of diffusion models", algorithm 1).
    """

    name: SolverName

    def evaluations(self, diffusion: GaussianDiffusion) -> int:
        """Return how often the network is evaluated: once a step, by Heun's method mostly twice."""
        twice = self.name == "heun"
        return diffusion.num_steps + twice * sum(leap <= _MAX_LEAP for leap in _leaps(diffusion))

    def solve(
        self,
        model: Callable[[Tensor, Tensor], Tensor],
        x_start: Float[Tensor, "n c h w"],
        diffusion: GaussianDiffusion,
        *,
        limit: float = 1.0,
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Float[Tensor, "n c h w"]:
        """Walk from noise to images along the probability flow; arguments as of `denoise`."""

        def image(x_t: Tensor, t: int) -> Tensor:
            steps = torch.full((len(x_t),), t, device=x_t.device)
            predicted, _ = split_output(model(x_t, diffusion.model_times(steps)), x_t)
            return diffusion.image_and_noise(predicted, x_t, t)[0].clamp(-limit, limit)

        def show(t: int, x: Tensor) -> Tensor:
            if watch is not None:
                watch(t, x)
            return x

        with torch.no_grad():
            if self.name == "heun":
                return _heun(image, x_start, diffusion, show)
            return _multistep(image, x_start, diffusion, show, corrected=self.name == "unipc")


SOLVERS: dict[SolverName, FlowSolver] = {name: FlowSolver(name) for name in get_args(SolverName)}
"""All solvers by their names."""


def _multistep(
    image: Callable[[Tensor, int], Tensor],
    x: Tensor,
    diffusion: GaussianDiffusion,
    show: Callable[[int, Tensor], Tensor],
    *,
    corrected: bool,
) -> Tensor:
    """Step by x' = (σ'/σ) x + α'(1−e⁻ʰ)(m + D/2) with D = h · (slope of the images m in λ)."""
    leaps, alpha_bars = _leaps(diffusion), diffusion.alpha_bars
    alpha, sigma = alpha_bars.sqrt().tolist(), (1 - alpha_bars).sqrt().tolist()
    first, gain, h_before, weights = x, 0.0, 0.0, None
    m = slope = torch.zeros_like(x)
    for t in reversed(range(diffusion.num_steps)):
        m_next = image(x, t)
        if corrected and weights is not None:
            x = first + gain * (weights[0] * slope + weights[1] * (m_next - m))
        if t == 0:
            return show(0, m_next)
        h = leaps[t]
        gain = -alpha[t - 1] * math.expm1(-h)
        first = sigma[t - 1] / sigma[t] * x + gain * m_next  # DDIM's step
        if t == diffusion.num_steps - 1:
            weights = 0.0, 0.5  # UniC-1: no slope yet
        elif h <= _MAX_RATIO * h_before:
            slope, weights = (m_next - m) * (h / h_before), _corrector_weights(h, h_before)
        else:
            slope, weights = torch.zeros_like(x), None
        m, h_before = m_next, h
        x = show(t, first + gain * slope / 2)
    return x


def _corrector_weights(h: float, h_before: float) -> tuple[float, float]:
    """Return the weights ρ of UniC-2 (UniPC, equation 9): R ρ = b with R = [[1, 1], [r, 1]]."""
    scale, r = math.expm1(-h), -h_before / h
    phi_2 = -scale / h - 1
    b = phi_2 / scale, 2 * (-phi_2 / h - 1 / 2) / scale
    rho = (b[0] - b[1]) / (1 - r)
    return rho, b[0] - rho


def _heun(
    image: Callable[[Tensor, int], Tensor],
    x: Tensor,
    diffusion: GaussianDiffusion,
    show: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """Step x/α by the mean of the slopes at both ends, dy/ds = ε with y = x/α and s = σ/α."""
    leaps, alpha_bars = _leaps(diffusion), diffusion.alpha_bars
    alpha, ratio = alpha_bars.sqrt().tolist(), (1 / alpha_bars - 1).sqrt().tolist()
    m = image(x, diffusion.num_steps - 1)
    for t in reversed(range(1, diffusion.num_steps)):
        eps = diffusion.predict_noise(x, m, t)
        x = diffusion.add_noise(m, eps, t - 1)  # Euler's step, which is DDIM's
        if leaps[t] <= _MAX_LEAP:
            end = diffusion.predict_noise(x, image(x, t - 1), t - 1)
            x = x + alpha[t - 1] * (ratio[t - 1] - ratio[t]) * (end - eps) / 2
        show(t, x)
        m = image(x, t - 1)
    return show(0, m)


def _leaps(diffusion: GaussianDiffusion) -> list[float]:
    """Return by how much λ grows in each step; the last, of t = 0, leads to ∞."""
    alpha_bars = diffusion.alpha_bars
    grows = -(alpha_bars / (1 - alpha_bars)).log().diff() / 2
    return [math.inf, *grows.tolist()]
