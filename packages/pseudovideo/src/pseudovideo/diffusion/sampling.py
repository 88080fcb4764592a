"""Sampling: noise that depends on where it is used alone, and the walk from noise to images.

A sampler draws one whole number from its generator. All further noise is a hash of that number, of
the sample's number, its frame and the step: a sample is the same whatever batch it is drawn in,
and the noise of one frame has no part in another.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from probseq.checks import check_counts, check_floating, check_sizes
from probseq.draws import draw_rows
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.labels import Classes

Network = Callable[[Tensor, Tensor], Tensor]
"""Takes x_t (n, c, h, w) and the model's times (n,) to noise and variances (n, 2c, h, w)."""
LabelledNetwork = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Takes tokens of classes as well, see `Classes.tokens`."""
Watch = Callable[[int, Tensor], None]
"""Takes the number of steps that are left and what has been reached."""

_FRAME = 1 << 32


@runtime_checkable
class Solver(Protocol):
    """A way from noise to images that draws nothing, such as those of `beyond.solvers`."""

    def evaluations(self, diffusion: GaussianDiffusion) -> int:
        """Return how often the network is evaluated on the way."""
        ...

    def solve(
        self,
        model: Network,
        x_start: Float[Tensor, "n c h w"],
        diffusion: GaussianDiffusion,
        *,
        limit: float,
        watch: Watch | None,
    ) -> Float[Tensor, "n c h w"]:
        """Return images; arguments as of `denoise`."""
        ...


def draw_seed(generator: torch.Generator | None) -> int:
    """Return one whole number for all noise to come; None: of torch's global generator."""
    device = None if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))


def draw_noise(
    numbers: Int64[Tensor, " n"], shape: Sequence[int], *, seed: int, step: int, frame: int = 0
) -> Float32[Tensor, "n ..."]:
    """Return standard normal noise of one step of some samples.

    Samples are counted over all batches, on the device where the noise is wanted; the seed is that
    of `draw_seed`, and the step t, or S for the noise that sampling starts from.
    """
    count = math.prod(shape)
    normals = counter_normal(numbers, count, seed=seed, epoch=frame * _FRAME + step)
    return normals.reshape(len(numbers), *shape)


def noise_like(
    images: Float[Tensor, "n ..."], generator: torch.Generator | None
) -> Float[Tensor, "n ..."]:
    """Return standard normal noise to train with, on the images' device.

    In the images' precision, at least float32.

    Args:
        images: what it shall be like.
        generator: one number is drawn of it.
    """
    count, device = len(images), images.device
    numbers = draw_rows(lambda n: torch.arange(n, device=device), count, generator)
    noise = draw_noise(numbers, images.shape[1:], seed=draw_seed(generator), step=0)
    return noise.to(at_least_float32(images))


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Return the precision to compute in with images or weights: theirs, or float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def sampling_process(
    diffusion: GaussianDiffusion,
    num_steps: int | None,
    eta: float | None,
    solver: Solver | None,
    **counts: int,
) -> GaussianDiffusion:
    """Return the process that a sampler walks; refuse what makes no samples.

    The process was learned in all its steps; `counts` are numbers that must be 1 at least, by the
    names of the arguments.

    Raises:
        ValueError: names the argument.
    """
    check_counts(**counts)
    if eta is not None and not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in 0..1, got {eta}")
    if solver is not None and eta is not None:
        raise ValueError(f"eta must be None with a solver, got {eta}")
    if num_steps is None:
        return diffusion
    check_counts(num_steps=num_steps)
    if not 2 <= num_steps <= diffusion.num_steps:
        raise ValueError(
            f"num_steps must be from 2 to the {diffusion.num_steps} steps of the process, got "
            f"{num_steps}"
        )
    return diffusion.respaced(num_steps)


def conditioned(network: LabelledNetwork, classes: Classes) -> Network:
    """Return the network of samples of some classes, guided towards them where asked.

    ε = ε_u + g (ε_c − ε_u) (Ho & Salimans 2022, equation 6, with g = 1 + w), both from one batch.
    The variances are those with the class: they were learned for its means.

    Args:
        network: of noise and variances.
        classes: of the samples, in the order in which they come.
    """

    def predict(x: Tensor, times: Tensor) -> Tensor:
        output = network(classes.twice(x), classes.twice(times), classes.tokens)
        if not classes.guided:
            return output
        channels = x.shape[1]
        variances = output[: len(x), channels:]
        return torch.cat([classes.mixed(output[:, :channels]), variances], dim=1)

    return predict


def denoise(
    model: Network,
    x_start: Float[Tensor, "n c h w"],
    diffusion: GaussianDiffusion,
    *,
    step_noise: Callable[[int], Tensor],
    eta: float | None = None,
    solver: Solver | None = None,
    limit: float = 1.0,
    watch: Watch | None = None,
) -> Float[Tensor, "n c h w"]:
    """Walk from noise to images, through all steps of a process; no gradients.

    Args:
        model: predicts noise and variances.
        x_start: standard normal noise.
        diffusion: the process, respaced for fewer steps.
        step_noise: standard normal noise (n, c, h, w) of step t; asked for where it has a part,
            which it never has at t = 0.
        eta: None draws from the model's own Gaussians (ancestral); a number is η of DDIM.
        solver: in place of both, a solver of the probability flow.
        limit: predicted images are kept within ±limit.
        watch: called after each step with its t and with what it came to; the last, t = 0, is the
            result. Must not change it.

    Returns:
        Images within ±limit.

    Raises:
        ValueError: `x_start` is no finite noise, or an argument is not as `GaussianDiffusion` has
            it.
    """
    check_floating(x_start=x_start)
    check_sizes("x_start", x_start, "n", "c", "h", "w")
    if not (x_start.is_meta or x_start.isfinite().all()):
        raise ValueError("x_start must be finite, got NaN or infinity")
    if solver is not None:
        return solver.solve(model, x_start, diffusion, limit=limit, watch=watch)
    x = x_start
    with torch.no_grad():
        for t in reversed(range(diffusion.num_steps)):
            steps = torch.full((len(x),), t, device=x.device)
            output = model(x, diffusion.model_times(steps))
            noise = step_noise(t) if t > 0 and eta != 0 else None
            if eta is None:
                x = diffusion.step(output, x, t, noise, limit=limit)
            else:
                x = diffusion.ddim_step(output, x, t, noise, eta=eta, limit=limit)
            if watch is not None:
                watch(t, x)
    return x
