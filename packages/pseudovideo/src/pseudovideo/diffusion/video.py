"""Autoregressive video diffusion: frames given the C frames before them (section 5.4.2).

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable

import torch
from einops import repeat
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_integers, check_sizes, check_whole
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.objective import HybridLosses, hybrid_losses
from pseudovideo.diffusion.sampling import (
    Solver,
    at_least_float32,
    draw_seed,
    noise_like,
    sampling_process,
)
from pseudovideo.diffusion.stages import draw_windows, stages
from pseudovideo.diffusion.video_sampling import Watch, frame_noise, sample_stage, sample_videos
from pseudovideo.diffusion.video_unet import VideoUNet
from pseudovideo.labels import Classes, check_labels, dropped_labels, sample_classes
from pseudovideo.pixels import check_batch
from pseudovideo.pretrained import Pretrained, eval_mode
from pseudovideo.spec import VideoDiffusionConfig


class VideoDiffusion(Pretrained):
    """A UNet that tells the noise of frames from noisy frames and given ones.

    Args:
        config: sizes, process and stages.

    Attributes:
        diffusion: the process that is learned.
        stages: the sampler's plan.

    Raises:
        MissingExtraError: diffusers is not installed.
    """

    config_class = VideoDiffusionConfig
    config: VideoDiffusionConfig

    def __init__(self, config: VideoDiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.diffusion = GaussianDiffusion.make(
            config.num_steps, config.schedule, config.prediction
        )
        self.stages = stages(config.num_frames, config.context)
        self.network = VideoUNet(config, one_way=config.one_way)

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

        Args:
            videos: in −1..1 but for their noise, the image last.
            t: steps, 0..S−1.
            labels: class of each video, where the model has classes; in train mode hidden with
                probability `label_dropout`.
            generator: draws windows and noise, and which labels are hidden.

        Raises:
            ValueError: videos or labels of another kind than the model's, or steps that are not
                theirs.
        """
        check_batch("videos", videos, (self.config.num_frames, *self.config.image_shape))
        check_sizes("t", t, len(videos))
        check_integers(0, self.diffusion.num_steps - 1, t=t)
        config, batch = self.config, len(videos)
        window = draw_windows(
            batch,
            num_frames=config.num_frames,
            context=config.context,
            masks=config.masks,
            generator=generator,
            device=videos.device,
        )
        rows = torch.arange(batch, device=videos.device)[:, None]
        clean = videos[rows, window.frames]
        slots = clean.shape[1]
        noise = noise_like(clean, generator)
        x0, eps, steps = clean.flatten(0, 1), noise.flatten(0, 1), repeat(t, "b -> (b s)", s=slots)
        x_t = self.diffusion.add_noise(x0, eps, steps)
        tokens = dropped_labels(labels, config, batch, training=self.training, generator=generator)
        observed = window.observed[:, :, None, None, None]
        pixels = torch.where(observed, clean, x_t.unflatten(0, (batch, slots)))
        times = self.diffusion.model_times(t)
        output = self.network(pixels, times, window, labels=tokens).flatten(0, 1)
        losses = hybrid_losses(self.diffusion, output, x0, x_t, eps, steps)
        weights = window.latent / window.latent.sum(1, keepdim=True)
        return HybridLosses(
            *((weights * loss.unflatten(0, (batch, slots))).sum(1) for loss in losses)
        )

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
    ) -> Float[Tensor, "n T c h w"]:
        """Draw videos stage by stage, in eval mode.

        Args:
            n: number of videos.
            labels: class of each video, where the model has classes; None draws them
                (`draw_labels`).
            guidance: as of `ImageDiffusion.sample`, in all stages.
            num_steps: steps to take in each stage, 2 at least, see `GaussianDiffusion.respaced`;
                None takes all.
            eta: None draws from the model's Gaussians; a number in 0..1 is η of DDIM.
            solver: as of `ImageDiffusion.sample`.
            generator: draws the one seed that all noise follows from. Each frame of each sample
                has noise of its own: it depends neither on `batch_size` nor, but for round-off, on
                other samples, nor on frames of later stages.
            batch_size: videos drawn at once.
            progress: called after each batch with the number of its videos.
            watch: called for each batch with the number of steps in all stages and the noise, then
                after each step with the number of steps that are left and the videos as they are:
                frames that are not begun are noise. With 0 and the videos at last.

        Returns:
            On the model's device and in its precision, at least float32; frame −1, the image, in
            −1..1.

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
        done: list[Tensor] = []
        with eval_mode(self):
            for numbers in torch.arange(n, device=weight.device).split(batch_size):
                start = frame_noise(
                    numbers,
                    range(self.config.num_frames),
                    self.config.image_shape,
                    seed=seed,
                    step=diffusion.num_steps,
                )
                drawn = sample_videos(
                    self.network,
                    diffusion,
                    self.stages,
                    start.to(at_least_float32(weight)),
                    numbers=numbers,
                    seed=seed,
                    classes=classes.of(numbers),
                    eta=eta,
                    solver=solver,
                    watch=watch,
                )
                done.append(drawn)
                if progress is not None:
                    progress(len(numbers))
        return torch.cat(done)

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
        solver: Solver | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = 64,
        progress: Callable[[int], object] | None = None,
    ) -> Float[Tensor, "b k c h w"]:
        """Draw a frame given the true C frames before it, in eval mode; see `frame_errors`.

        Args:
            videos: true videos, on the model's device.
            frame: number of the frame, C..T−1.
            labels: class of each video, where the model has classes.
            num_samples: samples K for each video.
            num_steps: as of `sample`.
            eta: as of `sample`.
            solver: as of `sample`.
            generator: draws the one seed that all noise follows from.
            batch_size: samples drawn at once.
            progress: called after each batch with the number of its samples.

        Raises:
            ValueError: as of `sample`; videos or labels of another kind than the model's, videos
                that are not finite, or a
                frame of the first window, which has no context.
        """
        check_batch("videos", videos, (self.config.num_frames, *self.config.image_shape))
        if not videos.isfinite().all():
            raise ValueError("videos must be finite, got NaN or infinity")
        check_labels(labels, self.config, len(videos))
        check_whole(frame=frame)
        config = self.config
        if not config.context <= frame < config.num_frames:
            raise ValueError(
                f"frame must be one that has a context, {config.context}..{config.num_frames - 1}, "
                f"got {frame}"
            )
        diffusion = sampling_process(
            self.diffusion, num_steps, eta, solver, num_samples=num_samples, batch_size=batch_size
        )
        stage = self.stages[frame - config.context + 1]
        seed, done, classes = draw_seed(generator), list[Tensor](), Classes(labels)
        contexts = videos[:, list(stage.observed)].to(at_least_float32(next(self.parameters())))
        every = torch.arange(len(videos) * num_samples, device=videos.device)
        with eval_mode(self):
            for numbers in every.split(batch_size):
                drawn = sample_stage(
                    self.network,
                    diffusion,
                    stage,
                    contexts[numbers // num_samples],
                    clip=frame == config.num_frames - 1,
                    numbers=numbers,
                    seed=seed,
                    classes=classes.of(numbers // num_samples),
                    eta=eta,
                    solver=solver,
                )
                done.append(drawn[:, 0])
                if progress is not None:
                    progress(len(numbers))
        return torch.cat(done).unflatten(0, (len(videos), num_samples))

    def evaluations_per_sample(
        self, num_steps: int | None = None, solver: Solver | None = None
    ) -> int:
        """Return how many frames pass through the network for one video.

        Args:
            num_steps: as of `sample`.
            solver: as of `sample`.

        Raises:
            ValueError: `num_steps` is no number of steps.
        """
        process = sampling_process(self.diffusion, num_steps, None, solver)
        steps = process.num_steps if solver is None else solver.evaluations(process)
        # Observed frames of one-way networks pass once, else at each step.
        passes = 1 if self.config.one_way else steps
        return sum(
            passes * len(stage.observed) + steps * len(stage.latent) for stage in self.stages
        )
