"""Autoregressive video diffusion: frames given the C frames before them (section 5.4.2).

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable

import torch
from einops import repeat
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_finite, check_integers, check_sizes, check_whole
from pseudovideo.diffusion.base import FrameDiffusion, Sampler, sample_stage
from pseudovideo.diffusion.frame_windows import (
    FrameWindow,
    Stage,
    draw_windows,
    stage_window,
    stages,
)
from pseudovideo.diffusion.objective import HybridLosses, hybrid_losses
from pseudovideo.diffusion.sampling import Network, sampling_process
from pseudovideo.diffusion.video_unet import VideoUNet
from pseudovideo.labels import Classes, check_labels, dropped_labels
from pseudovideo.pixels import check_batch
from pseudovideo.pretrained import eval_mode
from pseudovideo.sampling import at_least_float32, draw_seed, noise_like, sample_batches
from pseudovideo.spec import VideoDiffusionConfig


class VideoDiffusion(FrameDiffusion):
    """A UNet that tells the noise of frames from noisy frames and given ones.

    Raises:
        MissingExtraError: diffusers is not installed.
    """

    config_class = VideoDiffusionConfig
    config: VideoDiffusionConfig

    def __init__(self, config: VideoDiffusionConfig) -> None:
        super().__init__(config, stages(config.num_frames, config.context))
        self.network = VideoUNet(config, one_way=config.one_way)

    def stage_network(
        self,
        stage: Stage,
        observed: Float[Tensor, "b k c h w"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Network:
        """Return what predicts the latent frames of a stage, see `FrameDiffusion.stage_network`.

        A one-way network sees the observed frames here, once, else they pass through it at each
        call.
        """
        network, num_observed, count = self.network, observed.shape[1], len(stage.latent)
        window = stage_window(stage, len(observed), device=observed.device)
        memories = None
        if network.one_way and num_observed:
            with torch.no_grad():
                memories = network.remember(observed, window.frames[:, :num_observed], labels)
            window = FrameWindow(*(slots[:, num_observed:] for slots in window))
            observed = observed[:, :0]

        def predict(x: Tensor, times: Tensor) -> Tensor:
            pixels = torch.cat([observed, x], dim=1)
            return network(pixels, times, window, memories, labels)[:, -count:]

        return predict

    def training_losses(
        self,
        videos: Float[Tensor, "b T c h w"],
        t: Int64[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> HybridLosses:
        """Return L_hybrid of each video: the latent frames of one window stand for all its frames.

        It is the mean over the window's latent frames. Stages being drawn as often as they have
        such frames, its expectation is the mean over the video's frames, as they count in the
        video's bound.

        The bound's term of t = 0 takes corrupted frames for 8-bit images as the last frame is. Its
        value is no code length of such frames then; it still trains their variances.

        Deviation from the reference implementation of flexible video diffusion: its bound is over
        observed frames too, of frames that are all clipped to −1..1.

        Videos are in −1..1 but for their noise, the image last; the generator draws windows, noise,
        and which labels are hidden.
        """
        check_batch("videos", videos, (self.config.num_frames, *self.config.image_shape))
        check_sizes("t", t, len(videos))
        check_integers(0, self.diffusion.num_steps - 1, t=t)
        config, batch = self.config, len(videos)
        window = draw_windows(
            batch,
            num_frames=config.num_frames,
            context=config.context,
            generator=generator,
            device=videos.device,
        )
        rows = torch.arange(batch, device=videos.device)[:, None]
        clean = videos[rows, window.frames]
        slots = clean.shape[1]
        noise = noise_like(clean, generator)
        x0, eps, steps = clean.flatten(0, 1), noise.flatten(0, 1), repeat(t, "b -> (b s)", s=slots)
        x_t = self.diffusion.add_noise(x0, eps, steps)
        tokens = dropped_labels(labels, self, batch, generator)
        observed = window.observed[:, :, None, None, None]
        pixels = torch.where(observed, clean, x_t.unflatten(0, (batch, slots)))
        times = self.diffusion.model_times(t)
        output = self.network(pixels, times, window, labels=tokens).flatten(0, 1)
        losses = hybrid_losses(self.diffusion, output, x0, x_t, eps, steps)
        # The mean over the latent frames of each window.
        weights = window.latent / window.latent.sum(1, keepdim=True)
        return HybridLosses(
            *((weights * loss.unflatten(0, (batch, slots))).sum(1) for loss in losses)
        )

    @torch.no_grad()
    def predict_frames(
        self,
        videos: Float[Tensor, "b T c h w"],
        frame: int,
        *,
        labels: Int64[Tensor, " b"] | None = None,
        num_samples: int,
        num_steps: int | None = None,
        eta: float | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
    ) -> Float[Tensor, "b k c h w"]:
        """Draw K samples of a frame given the true C before it, in eval mode; see `frame_errors`.

        The frame is one of C..T−1: those of the first window have no context. `num_steps`, `eta`,
        `generator` and `batch_size` are those of `sample`; `progress` is called after each batch
        with the number of its samples.
        """
        check_batch("videos", videos, (self.config.num_frames, *self.config.image_shape))
        check_finite(videos=videos)
        check_labels(labels, self.config, len(videos))
        check_whole(frame=frame)
        config = self.config
        if not config.context <= frame < config.num_frames:
            raise ValueError(
                f"frame must be one that has a context, {config.context}..{config.num_frames - 1}, "
                f"got {frame}"
            )
        counts = {"num_samples": num_samples, "batch_size": batch_size}
        diffusion = sampling_process(self.diffusion, num_steps, eta, **counts)
        stage = self.stages[frame - config.context + 1]
        seed, classes = draw_seed(generator), Classes(labels)
        contexts = videos[:, list(stage.observed)].to(at_least_float32(next(self.parameters())))

        def draw(numbers: Tensor) -> Tensor:
            row = numbers // num_samples
            sampler = Sampler(diffusion, numbers, seed, classes.select(row), eta)
            return sample_stage(self, stage, contexts[row], sampler)[:, 0]

        count = len(videos) * num_samples
        with eval_mode(self):
            frames = sample_batches(draw, count, batch_size, videos.device, progress=progress)
        return frames.unflatten(0, (len(videos), num_samples))

    def evaluations_per_sample(self, num_steps: int | None = None) -> int:
        """Return how many frames pass through the network for one video."""
        steps = sampling_process(self.diffusion, num_steps).num_steps
        # Observed frames of one-way networks pass once, else at each step.
        passes = 1 if self.config.one_way else steps
        return sum(
            passes * len(stage.observed) + steps * len(stage.latent) for stage in self.stages
        )
