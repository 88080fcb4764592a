"""Sampling videos stage by stage: each from noise to frames, given frames that are there."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.sampling import Solver, conditioned, denoise, draw_noise
from pseudovideo.diffusion.stages import Stage, Window, stage_window
from pseudovideo.diffusion.video_unet import VideoUNet
from pseudovideo.labels import NO_CLASSES, Classes

Watch = Callable[[int, Tensor], None]
"""Takes the number of steps that are left and what has been reached."""

FRAME_LIMIT = 6.1
"""What predictions of corrupted frames are kept within: no frame ever reaches it.

A frame of any noise is a·x + s·ε with a² + s² ≤ 1, whatever the length of the video. Six
standard deviations from a pixel at 1 it has come to a + 6s ≤ √37.
"""


def frame_noise(
    numbers: Int64[Tensor, " b"],
    frames: Sequence[int],
    shape: Sequence[int],
    *,
    seed: int,
    step: int,
) -> Float[Tensor, "b l c h w"]:
    """Return noise of one step; that of a frame is the same whatever other frames are asked for.

    Args:
        numbers: of the samples, counted over all batches.
        frames: numbers of the frames.
        shape: of one frame.
        seed: of all samples.
        step: t, or S for the noise that sampling starts from.
    """
    noises = [draw_noise(numbers, shape, seed=seed, step=step, frame=frame) for frame in frames]
    return torch.stack(noises, dim=1)


def stage_network(
    network: VideoUNet,
    stage: Stage,
    observed: Float[Tensor, "b k c h w"],
    labels: Int64[Tensor, " b"] | None = None,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what predicts the latent frames of a stage given its observed ones.

    It takes noisy frames (b, l, c, h, w) and the model's times (b,) to noise and variances
    (b, l, 2c, h, w). A one-way network sees the observed frames here, once, else they pass through
    it at each call.

    Args:
        network: predicts noise and variances.
        stage: which frames.
        observed: pixels of its observed frames.
        labels: token of each video's class, where the network has them.
    """
    num_observed, count = observed.shape[1], len(stage.latent)
    window = stage_window(stage, len(observed), device=observed.device)
    memories = None
    if network.one_way and num_observed:
        with torch.no_grad():
            memories = network.remember(observed, window.frames[:, :num_observed], labels)
        window, observed = Window(*(slots[:, num_observed:] for slots in window)), observed[:, :0]

    def predict(x: Tensor, times: Tensor) -> Tensor:
        pixels = torch.cat([observed, x], dim=1)
        return network(pixels, times, window, memories, labels)[:, -count:]

    return predict


def sample_stage(
    network: VideoUNet,
    diffusion: GaussianDiffusion,
    stage: Stage,
    observed: Float[Tensor, "b k c h w"],
    *,
    clip: bool,
    numbers: Int64[Tensor, " b"],
    seed: int,
    classes: Classes = NO_CLASSES,
    eta: float | None = None,
    solver: Solver | None = None,
    watch: Watch | None = None,
    start: Float[Tensor, "b l c h w"] | None = None,
) -> Float[Tensor, "b l c h w"]:
    """Draw the latent frames of a stage given its observed ones.

    Args:
        network: predicts noise and variances.
        diffusion: the process, respaced for fewer steps.
        stage: which frames.
        observed: pixels of its observed frames.
        clip: keep predictions of the latent frames in −1..1, as images are. Corrupted frames go
            beyond, but a prediction made of almost pure noise is a hundred times as wrong as the
            network is, and must not run away: theirs are kept within `FRAME_LIMIT`.
        numbers: of the samples, counted over all batches.
        seed: of all samples.
        classes: of these samples.
        eta: None for ancestral sampling, else η of DDIM.
        solver: in place of both, a solver of the probability flow, anew in each stage.
        watch: called after each step t with t and the latent frames.
        start: the noise of the latent frames to start from; None draws it.
    """
    batch, count, shape = len(observed), len(stage.latent), observed.shape[2:]
    # Once with the class and once without, where guided.
    seen = classes.twice(observed)
    predict = stage_network(network, stage, seen, classes.tokens)

    def flat(x: Tensor, times: Tensor, _: Tensor | None) -> Tensor:
        # All frames of a video have the same time.
        return predict(x.unflatten(0, (len(seen), count)), times[::count]).flatten(0, 1)

    def noise(step: int) -> Tensor:
        drawn = frame_noise(numbers, stage.latent, shape, seed=seed, step=step)
        return drawn.to(observed.dtype).flatten(0, 1)

    def unfolded(x: Tensor) -> Tensor:
        return x.unflatten(0, (batch, count))

    x = denoise(
        conditioned(flat, classes),
        noise(diffusion.num_steps) if start is None else start.flatten(0, 1),
        diffusion,
        step_noise=noise,
        eta=eta,
        solver=solver,
        limit=1.0 if clip else FRAME_LIMIT,
        watch=None if watch is None else lambda t, x: watch(t, unfolded(x)),
    )
    return unfolded(x)


def sample_videos(
    network: VideoUNet,
    diffusion: GaussianDiffusion,
    plan: Sequence[Stage],
    start: Float[Tensor, "b T c h w"],
    *,
    numbers: Int64[Tensor, " b"],
    seed: int,
    classes: Classes = NO_CLASSES,
    eta: float | None = None,
    solver: Solver | None = None,
    watch: Watch | None = None,
) -> Float[Tensor, "b T c h w"]:
    """Draw whole videos, stage after stage.

    Args:
        network: predicts noise and variances.
        diffusion: the process, respaced for fewer steps.
        plan: the stages; each observes frames that earlier ones have made.
        start: the noise that sampling starts from (`frame_noise` of step S), shown by `watch` for
            frames that are not begun.
        numbers: of the samples, counted over all batches.
        seed: of all samples.
        classes: of these samples.
        eta: None for ancestral sampling, else η of DDIM.
        solver: in place of both, a solver of the probability flow, anew in each stage.
        watch: called at first and after each step with the number of steps that are left in all
            stages, and the videos as they are.
    """
    videos, steps = start.clone(), diffusion.num_steps
    if watch is not None:
        watch(len(plan) * steps, videos.clone())
    for later, stage in zip(reversed(range(len(plan))), plan, strict=True):
        latent = list(stage.latent)

        def seen(
            t: int, x: Tensor, *, left: int = later * steps, latent: list[int] = latent
        ) -> None:
            if watch is not None:
                shown = videos.clone()
                shown[:, latent] = x.to(shown.dtype)
                watch(left + t, shown)

        drawn = sample_stage(
            network,
            diffusion,
            stage,
            videos[:, list(stage.observed)],
            clip=stage.latent[0] == videos.shape[1] - 1,
            numbers=numbers,
            seed=seed,
            classes=classes,
            eta=eta,
            solver=solver,
            watch=seen if watch else None,
            start=videos[:, latent],
        )
        videos[:, latent] = drawn.to(videos.dtype)
    return videos
