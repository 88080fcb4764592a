"""The base of diffusion models of images and of videos: the process, and samples by stages.

An image model has one stage, of one frame that is given no other.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.pretrained import Pretrained
from pseudovideo.diffusion.frame_windows import Stage
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.sampling import Network, conditioned, denoise, sampling_process
from pseudovideo.labels import NO_CLASSES, Classes, sample_classes
from pseudovideo.pretrained import eval_mode
from pseudovideo.sampling import at_least_float32, draw_noise, draw_seed, sample_batches
from pseudovideo.spec import ImageDiffusionConfig

FRAME_LIMIT = 6.1
"""What predictions of corrupted frames are kept within: no frame ever reaches it.

A frame of any noise is a·x + s·ε with a² + s² ≤ 1, whatever the length of the video. Six
standard deviations from a pixel at 1 it has come to a + 6s ≤ √37.
"""


class Sampler(NamedTuple):
    """Process, numbers and classes of samples that are drawn together."""

    diffusion: GaussianDiffusion  # the process, respaced for fewer steps
    numbers: Int64[Tensor, " b"]  # of the samples, counted over all batches
    seed: int  # of all samples
    classes: Classes = NO_CLASSES  # of these samples
    eta: float | None = None  # None for ancestral sampling, else η of DDIM


class FrameDiffusion(Pretrained):
    """A network that tells the noise of frames from noisy frames and given ones.

    Attributes:
        diffusion: the process that is learned.
        stages: the sampler's plan, of which each observes frames that earlier ones have made.
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
        """Return what predicts the latent frames of a stage given pixels of its observed ones.

        It takes noisy frames (b, l, c, h, w) and the model's times (b,) to noise and variances (b,
        l, 2c, h, w). Labels are tokens of the samples' classes, where the network has them.
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
        generator: torch.Generator | None = None,
        batch_size: int = 64,
    ) -> Float[Tensor, "n *T c h w"]:
        """Draw images, or videos stage by stage, in eval mode.

        Args:
            n: number of samples.
            labels: class of each sample, where the model has classes; None draws them
                (`draw_labels`).
            guidance: g of ε = ε_u + g (ε_c − ε_u), see `conditioned`. 1 is the model of the class;
                more makes images more typical of it, and less varied; 0 leaves the class out.
                Other values than these two take twice the evaluations.
            num_steps: steps in each stage, 2 at least, evenly spaced; None takes all.
            eta: None draws from the model's Gaussians; a number in 0..1 is η of DDIM.
            generator: draws the one seed that all noise follows from. Each frame of each sample
                has noise of its own: it depends neither on `batch_size` nor, but for round-off, on
                other samples, nor on frames of later stages.
            batch_size: samples drawn at once.

        Returns:
            Images (n, c, h, w) in −1..1, or videos (n, T, c, h, w) whose last frame, the image, is;
            on the model's device and in its precision, at least float32.
        """
        diffusion = sampling_process(self.diffusion, num_steps, eta, n=n, batch_size=batch_size)
        seed, weight = draw_seed(generator), next(self.parameters())
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=weight.device
        )

        def draw(numbers: Tensor) -> Tensor:
            sampler = Sampler(diffusion, numbers, seed, classes.select(numbers), eta)
            shape = (len(numbers), self.num_frames, *self.config.image_shape)
            videos = weight.new_empty(shape, dtype=at_least_float32(weight))
            for stage in self.stages:
                observed = videos[:, list(stage.observed)]
                videos[:, list(stage.latent)] = sample_stage(self, stage, observed, sampler)
            return videos

        with eval_mode(self):
            videos = sample_batches(draw, n, batch_size, weight.device)
        return videos if self.num_frames > 1 else videos[:, 0]


def sample_stage(
    model: FrameDiffusion, stage: Stage, observed: Float[Tensor, "b k c h w"], sampler: Sampler
) -> Float[Tensor, "b l c h w"]:
    """Draw the latent frames of a stage given its observed ones.

    Predictions of the last frame are kept in −1..1, as images are. Corrupted frames go beyond, but
    a prediction made of almost pure noise is a hundred times as wrong as the network is, and must
    not run away: theirs are kept within `FRAME_LIMIT`.
    """
    diffusion, numbers, seed, classes, eta = sampler
    batch, count, shape = len(observed), len(stage.latent), observed.shape[2:]
    # Once with the class and once without, where guided.
    doubled = classes.duplicate_for_guidance(observed)
    predict = model.stage_network(stage, doubled, classes.tokens)

    def flat(x: Tensor, times: Tensor, _: Tensor | None) -> Tensor:
        # All frames of a video have the same time.
        return predict(x.unflatten(0, (len(doubled), count)), times[::count]).flatten(0, 1)

    def noise(step: int) -> Tensor:
        # That of a frame is the same whatever other frames the stage has.
        frames = [
            draw_noise(numbers, shape, seed=seed, step=step, frame=frame) for frame in stage.latent
        ]
        return torch.stack(frames, dim=1).to(observed.dtype).flatten(0, 1)

    x = denoise(
        conditioned(flat, classes),
        noise(diffusion.num_steps),
        diffusion,
        step_noise=noise,
        eta=eta,
        limit=1.0 if stage.latent[0] == model.num_frames - 1 else FRAME_LIMIT,
    )
    return x.unflatten(0, (batch, count))
