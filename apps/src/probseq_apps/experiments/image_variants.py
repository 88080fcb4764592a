"""Variants of `probseq generate diffusion` and `hvae`: what they are, learn, draw and measure."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.reference import (
    Process,
    numbered,
    to_bytes,
)
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    HVAE_MODEL,
    DiffusionSampling,
    DiffusionSettings,
    HvaeArm,
    HvaeSettings,
    diffusion_arm,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.published import load_improved_ddpm
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bits_per_dim
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pretrained import Pretrained
from pseudovideo.spec import (
    HVAEConfig,
    ImageDiffusionConfig,
    UNetConfig,
    VideoDiffusionConfig,
    unet_values,
)

Watch = Callable[[int, Tensor], None]
# Samples of a film, and about how many snapshots it has; images at once.
_FILMED, _SNAPSHOTS, _BATCH = 16, 24, 250


class DiffusionVariant:
    """A diffusion model of images or of their pseudo videos."""

    kind: ClassVar[str] = DIFFUSION_MODEL

    def __init__(self, settings: DiffusionSettings) -> None:
        self.settings = settings
        self.arm, self.seed = diffusion_arm(settings.arms[0]), settings.seeds[0]
        self.name = self.arm.name
        self.videos, self.context = settings.videos_of(self.arm), settings.context_of(self.arm)

    def config(self, image_size: int, channels: int) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images."""
        settings, frames = self.settings, self.settings.frames
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels)
        values |= {**settings.process.to_dict(), "num_steps": settings.steps_of(self.arm)}
        if not self.arm.is_video:
            return ImageDiffusion, ImageDiffusionConfig(**values)
        values |= {"masks": frames.masks, "one_way": frames.one_way, "context": self.context}
        return VideoDiffusion, VideoDiffusionConfig(**values, num_frames=self.arm.frames)

    def sampling(self, sampling: DiffusionSampling) -> "DiffusionVariant":
        """Return the variant with another way of sampling."""
        return DiffusionVariant(replace(self.settings, sampling=sampling))

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        _, config = self.config(data.image_size, data.channels)
        if self.settings.init_weights is not None:
            self._published(config)
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            build_unet(config, in_channels=config.channels, out_channels=2 * config.channels)
        pseudo_videos(to_unit(data.train[:1]), self.videos)

    def build(self, data: GenerationData) -> tuple[nn.Module, Pretrained]:
        """Return an objective, and the new model in it, with published weights if named."""
        kind, config = self.config(data.image_size, data.channels)
        if self.settings.init_weights is not None:
            model: Any = self._published(config)
        else:
            model = _seeded(kind, config, self.seed)
        return DiffusionObjective(model, importance=self.settings.training.importance), model

    def batch(self, data: GenerationData) -> Batch:
        """Return images and their numbers."""
        return numbered(data.train)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        images, index = batch
        seed = derive_seed(self.seed, "videos")
        frames = pseudo_videos(
            to_unit(images), self.videos, seed=seed, epoch=step.epoch, index=index
        )
        return LossParts.of(model(frames, generator=step.generator))

    def draw(
        self,
        model: ImageDiffusion | VideoDiffusion,
        data: GenerationData | None,
        count: int,
        generator: torch.Generator,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n t c h w"]:
        """Return samples, the image last."""
        drawn = model.sample(
            count,
            num_steps=self.settings.sampling.sampling_steps,
            eta=self.settings.sampling.noise,
            generator=generator,
            batch_size=count,
            watch=watch,
        )
        return drawn[:, None] if isinstance(model, ImageDiffusion) else drawn

    def film(
        self,
        model: ImageDiffusion | VideoDiffusion,
        data: GenerationData,
        num: int,
        generator: torch.Generator,
    ) -> Process:
        """Return what an image model takes images to be, or a video model's frames as they are."""
        steps = self.settings.sampling.sampling_steps
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
                shown = state.clone()
                for number, stage in enumerate(model.stages):
                    if total - left <= number * diffusion.num_steps:  # not begun: grey
                        shown[:, list(stage.latent)] = 0.0
                frames.append(shown)
            elif left == 0:
                frames.append(state[:, None])
            else:
                # What follows is step left - 1, and this is what it will head for.
                times = torch.full((len(state),), left - 1, device=state.device)
                output = model(state, diffusion.model_times(times))
                frames.append(diffusion.reverse(output, state, left - 1).x0[:, None])

        self.draw(model, data, min(num, _FILMED), generator, watch)
        return Process(to_bytes(torch.stack(frames, 1)), torch.tensor(done))

    def measure(
        self, model: ImageDiffusion | VideoDiffusion, data: GenerationData
    ) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        sampling, asked = self.settings.sampling, self.settings.evaluation
        steps = self.settings.steps_of(self.arm)
        taken = evaluations = sampling.sampling_steps or steps
        likelihood, errors = None, None
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps)
            errors = self._frame_errors(model, data) if asked.frame_error_images else None
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            total = -(-len(images) // _BATCH) * steps
            likelihood = _watched(
                "likelihood",
                " steps",
                total,
                partial(
                    mean_bits_per_dim,
                    model,
                    images,
                    generator=generator_for(model, derive_seed(self.seed, "likelihood")),
                    batch_size=_BATCH,
                ),
            )
        counted = min(asked.likelihood_images, len(data.test))
        return {
            "frames": self.arm.frames,
            "corruption": self.arm.corruption,
            "context": self.context or None,
            "diffusion_steps": steps,
            "bits_per_dim": likelihood,
            "num_likelihood": 0 if likelihood is None else counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": taken,
                "evaluations": evaluations,
            },
        }

    def _frame_errors(self, model: VideoDiffusion, data: GenerationData) -> dict[str, Any]:
        asked, images = (
            self.settings.evaluation,
            data.test[: self.settings.evaluation.frame_error_images],
        )
        predicted = self.arm.frames - self.context
        return _watched(
            "frame errors",
            " frames",
            predicted * len(images) * asked.frame_error_samples,
            partial(
                frame_prediction,
                model,
                self.videos,
                images,
                data.train,
                num_samples=asked.frame_error_samples,
                num_steps=self.settings.sampling.sampling_steps,
                eta=self.settings.sampling.noise,
                seed=derive_seed(self.seed, "test videos"),
                generator=generator_for(model, derive_seed(self.seed, "frame errors")),
            ),
        )

    def _published(self, config: Any) -> ImageDiffusion:
        file = self.settings.init_weights or ""
        try:
            return load_improved_ddpm(file, config)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"init_weights must be a file of published weights, and {file} is none"
            ) from error
        except ValueError as error:
            raise ValueError(f"init_weights must hold weights of this UNet: {error}") from error


class HvaeVariant:
    """A hierarchical VAE whose encoder blurs, or is learned."""

    kind: ClassVar[str] = HVAE_MODEL

    def __init__(self, settings: HvaeSettings) -> None:
        self.settings = settings
        self.arm: HvaeArm = settings.arms[0]
        self.name, self.seed = str(self.arm), settings.seeds[0]

    def config(self, image_size: int, channels: int) -> tuple[type[HVAE], HVAEConfig]:
        """Return class and settings of the model of such images."""
        values: dict[str, Any] = unet_values(self.settings.unet, image_size, channels)
        values |= self.settings.levels_of(self.arm).to_dict()
        kind = HeatHVAE if self.name == "heat" else LearnedEncoderHVAE
        return kind, HVAEConfig(**values)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes don't fit the images."""
        with torch.device("meta"):
            self.build(data)

    def build(self, data: GenerationData) -> tuple[nn.Module, Pretrained]:
        """Return a new model, twice."""
        model = _seeded(*self.config(data.image_size, data.channels), self.seed)
        return model, model

    def batch(self, data: GenerationData) -> Batch:
        """Return images."""
        return (data.train,)

    def loss(self, model: HVAE, batch: Batch, step: Step) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        (images,) = batch
        return LossParts.of(model.training_losses(to_unit(images), generator=step.generator))

    def draw(
        self,
        model: HVAE,
        data: GenerationData | None,
        count: int,
        generator: torch.Generator,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n t c h w"]:
        """Return samples; the training images are the prior of the heat encoder."""
        images = None if data is None else to_unit(data.train).to(generator.device)
        return model.sample(
            count, images=images, generator=generator, batch_size=count, watch=watch
        )[:, None]

    def film(
        self, model: HVAE, data: GenerationData, num: int, generator: torch.Generator
    ) -> Process:
        """Return the levels of the first of these samples."""
        frames: list[Tensor] = []
        self.draw(model, data, min(num, _FILMED), generator, lambda level, z: frames.append(z))
        return Process(to_bytes(torch.stack(frames, 1)[:, :, None]), torch.arange(len(frames)))

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, generator = (
            model.config.num_levels,
            generator_for(model, derive_seed(self.seed, "bound")),
        )
        parts = data.test[: self.settings.evaluation.bound_images].split(_BATCH)
        totals = [model.bound(to_unit(p.to(generator.device)), generator).total for p in parts]
        found = torch.cat(totals).double()
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": float(found.mean()),
            "num_bound": len(found),
            "generation": {
                "sampler": "ancestral",
                "sampling_steps": levels,
                "evaluations": levels,
            },
        }


Variant = DiffusionVariant | HvaeVariant


def _seeded(kind: Any, config: UNetConfig, seed: int) -> Any:
    """Return a new model whose weights depend on the seed alone."""
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(seed, "weights"))
        return kind(config)


def generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """Return a generator on a model's device."""
    return torch.Generator(next(model.parameters()).device).manual_seed(seed)


def _watched(name: str, unit: str, total: int, measure: Callable[..., Any]) -> Any:
    """Measure with a progress bar."""
    with log.bar(total=total, unit=unit) as bar:
        bar.set_description_str(name)
        return measure(progress=bar.update)
