"""Improved DDPM: a diffusion model of images (Nichol & Dhariwal 2021), the arm with one frame.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_floating, check_sizes
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.likelihood import BitsPerDim, bits_per_dim
from pseudovideo.diffusion.objective import HybridLosses, hybrid_losses
from pseudovideo.diffusion.sampling import (
    Solver,
    at_least_float32,
    conditioned,
    denoise,
    draw_noise,
    draw_seed,
    noise_like,
    sampling_process,
)
from pseudovideo.diffusion.unet import apply_unet, build_unet
from pseudovideo.labels import Classes, check_labels, dropped_labels, sample_classes
from pseudovideo.pixels import check_batch
from pseudovideo.pretrained import Pretrained, eval_mode
from pseudovideo.spec import ImageDiffusionConfig


class ImageDiffusion(Pretrained):
    """A UNet that tells noise, and how sure it is, from noisy images.

    Args:
        config: sizes and process.

    Attributes:
        diffusion: the process that is learned.

    Raises:
        MissingExtraError: diffusers is not installed.
    """

    config_class = ImageDiffusionConfig
    config: ImageDiffusionConfig

    def __init__(self, config: ImageDiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.diffusion = GaussianDiffusion.make(
            config.num_steps, config.schedule, config.prediction
        )
        self.unet = build_unet(
            config, in_channels=config.channels, out_channels=2 * config.channels
        )

    def forward(
        self,
        x_t: Float[Tensor, "b c h w"],
        times: Float[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """Return noise and places of the variances, each of all channels.

        Args:
            x_t: noisy images.
            times: of `diffusion.model_times`: steps on the scale of 1,000.
            labels: class of each, where the model has classes; `num_classes` itself says nothing
                of the class, where the model was trained with `label_dropout`.

        Raises:
            ValueError: states or times of another shape, or no floats; labels that are not the
                model's.
        """
        check_sizes("x_t", x_t, "b", *self.config.image_shape)
        check_sizes("times", times, len(x_t))
        check_floating(x_t=x_t, times=times)
        check_labels(labels, self.config, len(x_t), none=True)
        return apply_unet(self.unet, x_t, times, labels)

    def training_losses(
        self,
        images: Float[Tensor, "b c h w"],
        t: Int64[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> HybridLosses:
        """Return L_hybrid of each image at its step (improved DDPM, equation 16).

        Args:
            images: in −1..1.
            t: steps, 0..S−1.
            labels: class of each image, where the model has classes; in train mode hidden with
                probability `label_dropout`.
            generator: draws the noise, and which labels are hidden.

        Raises:
            ValueError: images or labels of another kind than the model's, or steps that are not
                theirs.
        """
        check_batch("images", images, self.config.image_shape)
        check_sizes("t", t, len(images))
        noise = noise_like(images, generator)
        x_t = self.diffusion.add_noise(images, noise, t)
        tokens = dropped_labels(
            labels, self.config, len(images), training=self.training, generator=generator
        )
        output = self(x_t, self.diffusion.model_times(t), tokens)
        return hybrid_losses(self.diffusion, output, images, x_t, noise, t)

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
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Float[Tensor, "n c h w"]:
        """Draw images in eval mode, from pure noise through the steps of the process.

        Args:
            n: number of images.
            labels: class of each image, where the model has classes; None draws them
                (`draw_labels`).
            guidance: g of ε = ε_u + g (ε_c − ε_u), see `conditioned`. 1 is the model of the class;
                more makes images more typical of it, and less varied; 0 leaves the class out.
                Other values than these two take twice the evaluations.
            num_steps: steps to take, 2 at least, see `GaussianDiffusion.respaced`; None takes all.
            eta: None draws from the model's Gaussians; a number in 0..1 is η of DDIM.
            solver: in place of both, such as `beyond.solvers.SOLVERS["dpm++"]`: solvers of the
                probability flow leave the learned variances out.
            generator: draws the one seed that all noise follows from. Each sample has noise of
                its own: it depends neither on `batch_size` nor, but for round-off, on the others.
            batch_size: images drawn at once.
            progress: called after each batch with the number of its images.
            watch: called for each batch with the number of steps and the noise, then after each
                step t with t and what it came to; with 0 and the images at last.

        Returns:
            In −1..1, on the model's device and in its precision, at least float32.

        Raises:
            ValueError: `n` or `batch_size` is below 1, `num_steps` is no number of steps, `eta`
                is outside 0..1 or given with a solver, labels are not the model's, or `guidance` is
                not 1 and the model was trained without `label_dropout`.
        """
        diffusion = sampling_process(
            self.diffusion, num_steps, eta, solver, n=n, batch_size=batch_size
        )
        seed, weight = draw_seed(generator), next(self.unet.parameters())
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=weight.device
        )
        done: list[Tensor] = []
        with eval_mode(self):
            for numbers in torch.arange(n, device=weight.device).split(batch_size):
                noise = partial(self._noise, numbers, seed)
                start = noise(diffusion.num_steps).to(at_least_float32(weight))
                if watch is not None:
                    watch(diffusion.num_steps, start)
                model = conditioned(self, classes.of(numbers))
                options: Any = {"eta": eta, "solver": solver, "watch": watch}
                done.append(denoise(model, start, diffusion, step_noise=noise, **options))
                if progress is not None:
                    progress(len(numbers))
        return torch.cat(done)

    def bits_per_dim(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> BitsPerDim:
        """Return the bound on −log₂ p(image) in bits per dimension, by S passes in eval mode.

        Args:
            images: levels k/127.5 − 1 of 8-bit images.
            labels: class of each image, where the model has classes: the bound is that on
                −log₂ p(image | class) then.
            generator: draws the one seed that all noise follows from.
            progress: called after each step with 1.

        Raises:
            ValueError: images or labels of another kind than the model's.
        """
        check_batch("images", images, self.config.image_shape)
        check_labels(labels, self.config, len(images))
        model = conditioned(self, Classes(labels))
        with eval_mode(self):
            return bits_per_dim(
                model, images, self.diffusion, generator=generator, progress=progress
            )

    def _noise(self, numbers: Int64[Tensor, " b"], seed: int, step: int) -> Tensor:
        return draw_noise(numbers, self.config.image_shape, seed=seed, step=step)
