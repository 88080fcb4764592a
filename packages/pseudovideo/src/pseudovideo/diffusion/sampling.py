"""The walk from noise to images."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts, check_floating, check_sizes
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.labels import Classes

Network = Callable[[Tensor, Tensor], Tensor]
"""Takes x_t (n, c, h, w) and the model's times (n,) to noise and variances (n, 2c, h, w)."""
LabelledNetwork = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Takes tokens of classes as well, see `Classes.tokens`."""


def sampling_process(
    diffusion: GaussianDiffusion, num_steps: int | None, eta: float | None = None, **counts: int
) -> GaussianDiffusion:
    """Return the process that a sampler walks; refuse what makes no samples.

    The process was learned in all its steps; `counts` are numbers that must be 1 at least, by the
    names of the arguments.
    """
    check_counts(**counts)
    if eta is not None and not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in 0..1, got {eta}")
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
    """

    def predict(x: Tensor, times: Tensor) -> Tensor:
        inputs = classes.duplicate_for_guidance(x), classes.duplicate_for_guidance(times)
        output = network(*inputs, classes.tokens)
        if not classes.guided:
            return output
        channels = x.shape[1]
        noise = classes.apply_guidance(output[:, :channels])
        return torch.cat([noise, output[: len(x), channels:]], dim=1)

    return predict


def denoise(
    model: Network,
    x_start: Float[Tensor, "n c h w"],
    diffusion: GaussianDiffusion,
    *,
    step_noise: Callable[[int], Tensor],
    eta: float | None = None,
    limit: float = 1.0,
) -> Float[Tensor, "n c h w"]:
    """Walk from noise to images, through all steps of a process; no gradients.

    Args:
        model: predicts noise and variances.
        x_start: standard normal noise.
        diffusion: the process, respaced for fewer steps.
        step_noise: standard normal noise (n, c, h, w) of step t, asked for where it has a part.
        eta: None draws from the model's own Gaussians (ancestral); a number is η of DDIM.
        limit: predicted images are kept within ±limit, and so is the result.
    """
    check_floating(x_start=x_start)
    check_sizes("x_start", x_start, "n", "c", "h", "w")
    if not (x_start.is_meta or x_start.isfinite().all()):
        raise ValueError("x_start must be finite, got NaN or infinity")
    x = x_start
    with torch.no_grad():
        for t in reversed(range(diffusion.num_steps)):
            # 1. The network's prediction from x_t
            steps = torch.full((len(x),), t, device=x.device)
            output = model(x, diffusion.model_times(steps))
            # 2. Noise, where the step has any
            noise = step_noise(t) if t > 0 and eta != 0 else None
            # 3. x_{t−1}, drawn from the model's Gaussian or by DDIM
            if eta is None:
                x = diffusion.step(output, x, t, noise, limit=limit)
            else:
                x = diffusion.ddim_step(output, x, t, noise, eta=eta, limit=limit)
    return x
