"""Noise that depends on where it is used alone, and samples drawn batch by batch.

A sampler draws one whole number from its generator. All further noise is a hash of that number, of
the sample's number, its frame and the step: a sample is the same whatever batch it is drawn in,
and the noise of one frame has no part in another.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from pseudovideo.corruptions.counter import counter_normal

_FRAME = 1 << 32


def sample_batches(
    sample: Callable[[Int64[Tensor, " b"]], Tensor],
    n: int,
    batch_size: int,
    device: torch.device,
    *,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    """Return n samples in order of their numbers 0..n−1, so many drawn at once by `sample`.

    The numbers are on a device; `progress` is called after each batch with the number of its
    samples.
    """
    batches: list[Tensor] = []
    for numbers in torch.arange(n, device=device).split(batch_size):
        batches.append(sample(numbers))
        if progress is not None:
            progress(len(numbers))
    return torch.cat(batches)


def draw_seed(generator: torch.Generator | None) -> int:
    """Return one whole number for all noise to come; None: of torch's global generator."""
    if type(generator) not in (torch.Generator, type(None)):
        raise ValueError(f"generator must be a torch.Generator, got {generator!r}")
    device = None if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))


def draw_noise(
    numbers: Int64[Tensor, " n"], shape: Sequence[int], *, seed: int, step: int, frame: int = 0
) -> Float32[Tensor, "n ..."]:
    """Return standard normal noise of one step of some samples, on the numbers' device.

    The seed is that of `draw_seed`, and the step t, or S for the noise that sampling starts from.
    """
    count = math.prod(shape)
    normals = counter_normal(numbers, count, seed=seed, epoch=frame * _FRAME + step)
    return normals.reshape(len(numbers), *shape)


def noise_like(
    images: Float[Tensor, "n ..."], generator: torch.Generator | None
) -> Float[Tensor, "n ..."]:
    """Return standard normal noise like images, to train with; one number is drawn for all."""
    numbers = torch.arange(len(images), device=images.device)
    noise = draw_noise(numbers, images.shape[1:], seed=draw_seed(generator), step=0)
    return noise.to(at_least_float32(images))


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Return the precision to compute in with images or weights: theirs, or float32."""
    return torch.promote_types(tensor.dtype, torch.float32)
