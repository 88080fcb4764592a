"""Solvers of the probability flow, the equation without noise whose end is distributed as samples.

They are diffusers' schedulers on the steps of our process. The network's variances play no part.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.errors import require
from pseudovideo.diffusion.gaussian import GaussianDiffusion, split_output
from pseudovideo.spec import SOLVERS, SolverName


class _Solver(NamedTuple):
    """A scheduler of diffusers.

    Attributes:
        name: of its class.
        prediction: what it is told: the image, or the noise where its sums would lose digits.
        settings: that differ from its defaults.
    """

    name: str
    prediction: str
    settings: dict[str, Any]


_SOLVERS: dict[SolverName, _Solver] = {
    # Lu et al. 2022, "DPM-Solver++", algorithm 2: the multistep one of order 2.
    "dpm++": _Solver("DPMSolverMultistepScheduler", "sample", {"solver_order": 2}),
    # Zhao et al. 2023, "UniPC": predictor of order 2 with its corrector.
    "unipc": _Solver("UniPCMultistepScheduler", "sample", {"solver_order": 2}),
    # Karras et al. 2022, "Elucidating the design space of diffusion models", algorithm 1.
    "heun": _Solver("HeunDiscreteScheduler", "epsilon", {}),
}


def check_solver(solver: str) -> None:
    """Refuse unknown names.

    Args:
        solver: name of a solver.

    Raises:
        ValueError: there is none of this name.
    """
    if solver not in _SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}")


def solver_evaluations(solver: SolverName | None, num_steps: int) -> int:
    """Return how often the network is evaluated: twice a step by Heun's method but at both ends.

    Args:
        solver: None for samplers without one.
        num_steps: that are taken.
    """
    return 2 * num_steps - 2 if solver == "heun" else num_steps


def solve(
    model: Callable[[Tensor, Tensor], Tensor],
    x_start: Float[Tensor, "n c h w"],
    diffusion: GaussianDiffusion,
    *,
    solver: SolverName,
    limit: float = 1.0,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Float[Tensor, "n c h w"]:
    """Walk from noise to images along the probability flow; no gradients.

    Heun's method takes its first step without the corrector, as DDIM: from pure noise, at a ratio
    of noise to image √(1/ᾱ − 1) of thousands, to one of a few, the mean of the slopes at both ends
    is no slope between them, and few steps would end in noise.

    Args:
        model: takes x_t and the model's times to predictions and variances.
        x_start: standard normal noise.
        diffusion: the process, respaced for fewer steps.
        solver: name of the solver; its state lives in this call.
        limit: predicted images are kept within ±limit.
        watch: called after each step with its t and with what it came to.

    Raises:
        ValueError: `solver` is unknown.
        MissingExtraError: diffusers is not installed.
    """
    check_solver(solver)
    prediction = _SOLVERS[solver].prediction
    x, left = x_start, diffusion.num_steps

    def image(x_t: Tensor, t: int) -> Tensor:
        steps = torch.full((len(x_t),), t, device=x_t.device)
        predicted, _ = split_output(model(x_t, diffusion.model_times(steps)), x_t)
        return diffusion.image_and_noise(predicted, x_t, t)[0].clamp(-limit, limit)

    def done(x_t: Tensor) -> None:
        nonlocal left
        left -= 1
        if watch is not None:
            watch(left, x_t)

    with torch.no_grad():
        if solver == "heun":
            last = left - 1
            x0 = image(x, last)
            eps = diffusion.predict_noise(x, x0, last)
            x = diffusion.add_noise(x0, eps, last - 1)
            done(x)
        scheduler = _scheduler(diffusion, solver, left)
        # Some walk x_t/√ᾱ_t.
        x = x / scheduler.scale_model_input(torch.ones(()), scheduler.timesteps[0])
        times = [int(t) for t in scheduler.timesteps]
        for number, t in enumerate(times, start=1):
            x_t = scheduler.scale_model_input(x, t)
            x0 = image(x_t, t)
            told = x0 if prediction == "sample" else diffusion.predict_noise(x_t, x0, t)
            x = scheduler.step(told, t, x).prev_sample
            # Heun's method has a corrector in each step but the last.
            if getattr(scheduler, "state_in_first_order", True) or number == len(times):
                done(scheduler.scale_model_input(x, t))
    return x


def _scheduler(diffusion: GaussianDiffusion, solver: SolverName, left: int) -> Any:
    """Return a new scheduler that walks the first `left` steps of a process, then to the image."""
    diffusers = require("diffusers", extra="diffusion", distribution="pseudovideo")
    name, prediction, settings = _SOLVERS[solver]
    steps = diffusion.num_steps
    with warnings.catch_warnings():
        # Of numpy, where diffusers makes arrays of tensors.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        scheduler = getattr(diffusers, name)(
            num_train_timesteps=steps,
            trained_betas=diffusion.betas.tolist(),
            prediction_type=prediction,
            timestep_spacing="trailing",
            **settings,
        )
    # In float64: of products of 1 − β in float32 the last could be 0. As an array, which they make
    # of it with a warning of numpy's.
    scheduler.alphas_cumprod = diffusion.alpha_bars.numpy()
    if left == steps:
        scheduler.set_timesteps(steps)
    else:
        scheduler.set_timesteps(timesteps=list(reversed(range(left))))
    return scheduler
