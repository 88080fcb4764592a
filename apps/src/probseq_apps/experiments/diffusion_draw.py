"""Samples of `probseq generate diffusion`, and how a few of them come into being."""

import torch
from torch import Tensor

from probseq_apps.experiments.diffusion_groups import DiffusionSampling
from probseq_apps.experiments.diffusion_model import Diffusion
from probseq_apps.experiments.generate_sample import Samples, collect_samples
from probseq_apps.experiments.process import Process
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion

# Samples of a film, and about how many snapshots it has.
_FILMED, _SNAPSHOTS = 16, 24


def draw_model(
    model: Diffusion, num: int, sampling: DiffusionSampling, *, seed: int, device: torch.device
) -> Samples:
    """Draw images or videos.

    Args:
        model: on the device.
        num: how many.
        sampling: how.
        seed: of the draws.
        device: where.
    """

    def draw(count: int, generator: torch.Generator) -> Tensor:
        drawn = model.sample(
            count,
            num_steps=sampling.sampling_steps,
            eta=sampling.noise,
            generator=generator,
            batch_size=count,
        )
        return drawn[:, None] if isinstance(model, ImageDiffusion) else drawn

    return collect_samples(draw, num, device, seed=seed)


def film_model(
    model: Diffusion, num: int, sampling: DiffusionSampling, *, seed: int, device: torch.device
) -> Process:
    """How the first samples that `draw_model` draws with the same seed come into being.

    Args:
        model: on the device.
        num: samples that are drawn; of many the first few are shown.
        sampling: how.
        seed: of the draws.
        device: where.

    Returns:
        Of an image model what it takes the image to be; of a video model the frames as they are,
        those that are not begun grey.
    """
    steps = sampling.sampling_steps
    diffusion = model.diffusion if steps is None else model.diffusion.respaced(steps)
    stages = len(model.stages) if isinstance(model, VideoDiffusion) else 1
    total = stages * diffusion.num_steps
    every = max(1, total // _SNAPSHOTS)
    frames: list[Tensor] = []
    done: list[int] = []

    def watch(left: int, state: Tensor) -> None:
        if left and (total - left) % every:
            return
        done.append(total - left)
        if isinstance(model, VideoDiffusion):
            frames.append(_begun(model, state, total - left, diffusion.num_steps))
        elif left == 0:
            frames.append(state[:, None])
        else:
            # What follows is step left − 1, and this is what it will head for.
            times = torch.full((len(state),), left - 1, device=state.device)
            output = model(state, diffusion.model_times(times))
            frames.append(diffusion.reverse(output, state, left - 1).x0[:, None])

    count = min(num, _FILMED)
    model.sample(
        count,
        num_steps=steps,
        eta=sampling.noise,
        generator=torch.Generator(device).manual_seed(seed),
        batch_size=count,
        watch=watch,
    )
    return Process.of(torch.stack(frames, 1), torch.tensor(done))


def _begun(model: VideoDiffusion, videos: Tensor, done: int, steps: int) -> Tensor:
    """Videos whose frames of later stages are grey."""
    shown = videos.clone()
    for number, stage in enumerate(model.stages):
        if done <= number * steps:
            shown[:, list(stage.latent)] = 0.0
    return shown
