"""What diffusion models of images and of videos share: the process, and samples stage by stage.

An image model has one stage, of one frame that is given no other.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.draws import draw_rows
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.sampling import (
    Network,
    Solver,
    Watch,
    at_least_float32,
    conditioned,
    denoise,
    draw_noise,
    draw_seed,
    sampling_process,
)
from pseudovideo.diffusion.stages import Stage
from pseudovideo.labels import NO_CLASSES, Classes, sample_classes
from pseudovideo.pretrained import Pretrained, eval_mode
from pseudovideo.spec import ImageDiffusionConfig

FRAME_LIMIT = 6.1
"""What predictions of corrupted frames are kept within: no frame ever reaches it.

A frame of any noise is a·x + s·ε with a² + s² ≤ 1, whatever the length of the video. Six
standard deviations from a pixel at 1 it has come to a + 6s ≤ √37.
"""


class Sampler(NamedTuple):
    """How samples are drawn, and which."""

    diffusion: GaussianDiffusion  # the process, respaced for fewer steps
    numbers: Int64[Tensor, " b"]  # of the samples, counted over all batches
    seed: int  # of all samples
    classes: Classes = NO_CLASSES  # of these samples
    eta: float | None = None  # None for ancestral sampling, else η of DDIM
    # In place of both, a solver of the probability flow, anew in each stage
    solver: Solver | None = None


class FrameDiffusion(Pretrained):
    """A network that tells the noise of frames from noisy frames and given ones.

    Args:
        config: sizes and process.
        plan: the sampler's stages, each of which observes frames that earlier ones have made.

    Attributes:
        diffusion: the process that is learned.
        stages: the sampler's plan.
    """

    def __init__(self, config: ImageDiffusionConfig, plan: Sequence[Stage]) -> None:
        super().__init__()
        self.config, self.stages = config, tuple(plan)
        self.diffusion = GaussianDiffusion.make(
            config.num_steps, config.schedule, config.prediction
        )

    @property
    def num_frames(self) -> int:
        """T, 1 for images."""
        return self.stages[-1].latent[-1] + 1

    @abstractmethod
    def stage_network(
        self,
        stage: Stage,
        observed: Float[Tensor, "b k c h w"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Network:
        """Return what predicts the latent frames of a stage given its observed ones.

        It takes noisy frames (b, l, c, h, w) and the model's times (b,) to noise and variances
        (b, l, 2c, h, w).

        Args:
            stage: which frames.
            observed: pixels of its observed frames.
            labels: token of each sample's class, where the network has them.
        """

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        num_steps: int | None = None,
        eta: float | None = None,
        solver: Solver | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n *T c h w"]:
        """Draw images, or videos stage by stage, in eval mode.

        Args:
            n: number of samples.
            labels: class of each sample, where the model has classes; None draws them
                (`draw_labels`).
            guidance: g of ε = ε_u + g (ε_c − ε_u), see `conditioned`. 1 is the model of the class;
                more makes images more typical of it, and less varied; 0 leaves the class out.
                Other values than these two take twice the evaluations.
            num_steps: steps to take in each stage, 2 at least, see `GaussianDiffusion.respaced`;
                None takes all.
            eta: None draws from the model's Gaussians; a number in 0..1 is η of DDIM.
            solver: in place of both, such as `beyond.solvers.SOLVERS["dpm++"]`: solvers of the
                probability flow leave the learned variances out.
            generator: draws the one seed that all noise follows from. Each frame of each sample
                has noise of its own: it depends neither on `batch_size` nor, but for round-off, on
                other samples, nor on frames of later stages.
            batch_size: samples drawn at once.
            progress: called after each batch with the number of its samples.
            watch: called for each batch with the number of steps in all stages and the noise, then
                after each step with the number of steps that are left and the samples as they are:
                frames that are not begun are noise. With 0 and the samples at last.

        Returns:
            Images (n, c, h, w) in −1..1, or videos (n, T, c, h, w) whose last frame, the image, is;
            on the model's device and in its precision, at least float32.

        Raises:
            ValueError: `n` or `batch_size` is below 1, `num_steps` is no number of steps, `eta`
                is outside 0..1 or given with a solver, labels are not the model's, or `guidance` is
                not 1 and the model was trained without `label_dropout`.
        """
        diffusion = sampling_process(
            self.diffusion, num_steps, eta, solver, n=n, batch_size=batch_size
        )
        seed, weight = draw_seed(generator), next(self.parameters())
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=weight.device
        )
        frames, shape = range(self.num_frames), self.config.image_shape
        every = torch.arange(n, device=weight.device)
        numbers_of = draw_rows(lambda k: torch.arange(k, device=weight.device), n, generator)
        done: list[Tensor] = []
        with eval_mode(self):
            for here in every.split(batch_size):
                numbers = numbers_of[here]
                sampler = Sampler(diffusion, numbers, seed, classes.of(here), eta, solver)
                start = frame_noise(numbers, frames, shape, seed=seed, step=diffusion.num_steps)
                start = start.to(at_least_float32(weight))
                done.append(
                    self._unstacked(sample_videos(self, start, sampler, self._shown(watch)))
                )
                if progress is not None:
                    progress(len(numbers))
        return torch.cat(done)

    def _unstacked(self, videos: Float[Tensor, "b T c h w"]) -> Float[Tensor, "b *T c h w"]:
        """Return images without the axis of frames, of which they have one."""
        return videos if self.num_frames > 1 else videos[:, 0]

    def _shown(self, watch: Watch | None) -> Watch | None:
        return None if watch is None else lambda left, videos: watch(left, self._unstacked(videos))


def frame_noise(
    numbers: Int64[Tensor, " b"],
    frames: Sequence[int],
    shape: Sequence[int],
    *,
    seed: int,
    step: int,
) -> Float[Tensor, "b l c h w"]:
    """Return noise of one step; that of a frame is the same whatever other frames are asked for.

    Samples are counted over all batches; the step is t, or S for the noise that sampling starts
    from.
    """
    noises = [draw_noise(numbers, shape, seed=seed, step=step, frame=frame) for frame in frames]
    return torch.stack(noises, dim=1)


def sample_stage(
    model: FrameDiffusion,
    stage: Stage,
    observed: Float[Tensor, "b k c h w"],
    sampler: Sampler,
    *,
    start: Float[Tensor, "b l c h w"] | None = None,
    watch: Watch | None = None,
) -> Float[Tensor, "b l c h w"]:
    """Draw the latent frames of a stage given its observed ones.

    Predictions of the last frame are kept in −1..1, as images are. Corrupted frames go beyond, but
    a prediction made of almost pure noise is a hundred times as wrong as the network is, and must
    not run away: theirs are kept within `FRAME_LIMIT`.

    Without `start` the noise of the latent frames is drawn; `watch` is called after each step t
    with t and these frames.
    """
    diffusion, numbers, seed, classes, eta, solver = sampler
    batch, count, shape = len(observed), len(stage.latent), observed.shape[2:]
    # Once with the class and once without, where guided.
    seen = classes.twice(observed)
    predict = model.stage_network(stage, seen, classes.tokens)

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
        limit=1.0 if stage.latent[0] == model.num_frames - 1 else FRAME_LIMIT,
        watch=None if watch is None else lambda t, x: watch(t, unfolded(x)),
    )
    return unfolded(x)


def sample_videos(
    model: FrameDiffusion,
    start: Float[Tensor, "b T c h w"],
    sampler: Sampler,
    watch: Watch | None = None,
) -> Float[Tensor, "b T c h w"]:
    """Draw whole videos, stage after stage.

    At first and after each step `watch` is called with the number of steps that are left in all
    stages, and the videos as they are: frames that are not begun are those of `start`, the noise of
    step S.
    """
    videos, steps, plan = start.clone(), sampler.diffusion.num_steps, model.stages
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
            model,
            stage,
            videos[:, list(stage.observed)],
            sampler,
            start=videos[:, latent],
            watch=seen if watch else None,
        )
        videos[:, latent] = drawn.to(videos.dtype)
    return videos
