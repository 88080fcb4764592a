"""Interpolate between the latents of two samples."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_counts
from pseudovideo.diffusion.base import FrameDiffusion, Sampler, frame_noise, sample_videos
from pseudovideo.diffusion.sampling import at_least_float32, draw_seed, sampling_process
from pseudovideo.hvae import HVAE, HeatHVAE
from pseudovideo.labels import sample_classes
from pseudovideo.pretrained import eval_mode


def slerp(
    first: Float[Tensor, "n ..."], second: Float[Tensor, "n ..."], weight: Float[Tensor, " k"]
) -> Float[Tensor, "n k ..."]:
    """Return points on the arc between two latents (Shoemake 1985), with noise's length throughout.

    sin((1 − w)θ)/sin θ · a + sin(wθ)/sin θ · b, θ being the angle between a and b; on the straight
    line where they are parallel.
    """
    a, b = first.flatten(1).double(), second.flatten(1).double()
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=1).clamp(-1, 1)[:, None]
    angle, w = cosine.arccos(), weight.double().to(a.device)[None]
    flat = angle.sin() < 1e-6
    sine = torch.where(flat, 1.0, angle.sin())
    left = torch.where(flat, 1.0 - w, ((1.0 - w) * angle).sin() / sine)
    right = torch.where(flat, w, (w * angle).sin() / sine)
    between = left[..., None] * a[:, None] + right[..., None] * b[:, None]
    return between.unflatten(2, first.shape[1:]).to(first.dtype)


@torch.no_grad()
def interpolate(
    model: FrameDiffusion | HVAE,
    n: int,
    *,
    points: int = 8,
    labels: Int64[Tensor, " n"] | None = None,
    guidance: float = 1.0,
    num_steps: int | None = None,
    images: Float[Tensor, "m c h w"] | None = None,
    image_labels: Int64[Tensor, " m"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n k c h w"]:
    """Draw pairs of samples and what lies between their latents; of videos the last frame.

    Diffusion models: DDIM without noise (η = 0) from noise on the arc between two draws, all frames
    of a video alike (Song et al. 2021, section 5.3). HVAEs: z_T of two draws, on the arc between
    those of a learned encoder and on the straight line between blurred images of `HeatHVAE`; the
    noise of lower levels is the same along a row.

    Args:
        model: what draws.
        n: pairs, drawn at once.
        points: images of a row, both samples among them.
        labels: class of each pair, where the model has classes; None draws them.
        guidance: as of the model's `sample`.
        num_steps: of diffusion; None takes all.
        images: what the prior of `HeatHVAE` consists of.
        image_labels: their classes, where the model has classes.
        generator: draws the latents, on the model's device.

    Raises:
        ValueError: counts below 1 and 2, or other arguments as in the models' `sample`.
    """
    check_counts(n=n, points=points)
    if points < 2:
        raise ValueError(f"points must be at least 2, got {points}")
    seed, parameter = draw_seed(generator), next(model.parameters())
    source: Any = {"generator": generator, "device": parameter.device}
    of_pairs = sample_classes(model.config, n, labels, guidance, **source)
    pairs = torch.arange(2 * n, device=parameter.device)
    rows = torch.arange(n, device=parameter.device).repeat_interleave(points)
    classes, weight = of_pairs.of(rows), torch.linspace(0, 1, points)
    with eval_mode(model):
        if isinstance(model, HVAE):
            prior_labels = of_pairs.labels if guidance else None
            prior_labels = None if prior_labels is None else prior_labels.repeat(2)
            options: Any = {"seed": seed, "labels": prior_labels, "image_labels": image_labels}
            first, second = model.draw_prior(pairs, images, **options).chunk(2)
            if isinstance(model, HeatHVAE):
                w = weight.to(first)[None, :, None, None, None]
                z = ((1 - w) * first[:, None] + w * second[:, None]).flatten(0, 1)
            else:
                z = slerp(first, second, weight).flatten(0, 1)
            drawn = model.descend(z, rows, classes, seed=seed)
        else:
            diffusion = sampling_process(model.diffusion, num_steps, 0.0, None)
            frames, shape = range(model.num_frames), model.config.image_shape
            start = frame_noise(pairs, frames, shape, seed=seed, step=diffusion.num_steps)
            first, second = start.to(at_least_float32(parameter)).chunk(2)
            z = slerp(first, second, weight).flatten(0, 1)
            sampler = Sampler(diffusion, rows, seed, classes, eta=0.0)
            drawn = sample_videos(model, z, sampler)[:, -1]
    return drawn.clamp(-1, 1).unflatten(0, (n, points))
