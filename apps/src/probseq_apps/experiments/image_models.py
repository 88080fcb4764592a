"""`probseq generate diffusion` and `probseq generate hvae`: a model for each variant and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import CONFIG, FINISHED, prepare_run_dir, read_finished, write_json
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Job, Results, RunFolder
from probseq_apps.experiments import stages
from probseq_apps.options import Options
from probseq_apps.report.generate import generate_report
from probseq_apps.report.generate_plots import Drawn
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    GENERATE_DIFFUSION,
    GENERATE_HVAE,
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
from pseudovideo.evaluation import frame_prediction, mean_bits_per_dim, mean_bound
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pretrained import Pretrained
from pseudovideo.samples import Film, film
from pseudovideo.spec import (
    HVAEConfig,
    ImageDiffusionConfig,
    UNetConfig,
    VideoDiffusionConfig,
    unet_values,
)

MODELS, PROCESS = "models", "process"
# Levels above are white.
_THRESHOLD = 127
# stages.Samples of a film; images at once.
_FILMED, _BATCH = 16, 250


class DiffusionVariant:
    """A diffusion model of images or of their pseudo videos."""

    kind: ClassVar[str] = DIFFUSION_MODEL

    def __init__(self, settings: DiffusionSettings) -> None:
        self.settings = settings
        self.arm, self.seed = diffusion_arm(settings.arms[0]), settings.seeds[0]
        self.name, self.steps = self.arm.name, settings.steps_of(self.arm)
        self.videos, self.context = settings.videos_of(self.arm), settings.context_of(self.arm)

    def config(self, image_size: int, channels: int) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images."""
        settings, frames = self.settings, self.settings.frames
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels)
        values |= {**settings.process.to_dict(), "num_steps": self.steps}
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
            model = stages.seeded(
                partial(cast("Any", kind), config), derive_seed(self.seed, "weights")
            )
        return DiffusionObjective(model, importance=self.settings.training.importance), model

    def batch(self, data: GenerationData) -> Batch:
        """Return images and their numbers."""
        return stages.numbered(data.train)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        images, index = batch
        seed, epoch = derive_seed(self.seed, "videos"), step.epoch
        frames = pseudo_videos(to_unit(images), self.videos, seed=seed, epoch=epoch, index=index)
        return LossParts.of(model(frames, generator=step.generator))

    def sample_options(self, data: GenerationData | None, model: nn.Module) -> dict[str, Any]:
        """Return what the model's `sample` takes."""
        sampling = self.settings.sampling
        return {"num_steps": sampling.sampling_steps, "eta": sampling.noise}

    def measure(
        self, model: ImageDiffusion | VideoDiffusion, data: GenerationData
    ) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        sampling, asked = self.settings.sampling, self.settings.evaluation
        taken = evaluations = sampling.sampling_steps or self.steps
        likelihood, errors, counted = None, None, 0
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps)
            errors = self._frame_errors(model, data) if asked.frame_error_images else None
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            counted = len(images)
            generator = generator_for(model, derive_seed(self.seed, "likelihood"))
            measure = partial(mean_bits_per_dim, model, images, generator=generator)
            batches = -(-counted // _BATCH)
            likelihood = _watched("likelihood", " steps", batches * self.steps, measure)
        return {
            "frames": self.arm.frames,
            "corruption": self.arm.corruption,
            "context": self.context or None,
            "diffusion_steps": self.steps,
            "bits_per_dim": likelihood,
            "num_likelihood": counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": taken,
                "evaluations": evaluations,
            },
        }

    def _frame_errors(self, model: VideoDiffusion, data: GenerationData) -> dict[str, Any]:
        asked = self.settings.evaluation
        images, samples = data.test[: asked.frame_error_images], asked.frame_error_samples
        options = self.sample_options(data, model) | {
            "num_samples": samples,
            "seed": derive_seed(self.seed, "test videos"),
            "generator": generator_for(model, derive_seed(self.seed, "frame errors")),
        }
        measure = partial(frame_prediction, model, self.videos, images, data.train, **options)
        total = (self.arm.frames - self.context) * len(images) * samples
        return _watched("frame errors", " frames", total, measure)

    def _published(self, config: Any) -> ImageDiffusion:
        file = self.settings.init_weights or ""
        try:
            return load_improved_ddpm(file, config)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(
                f"init_weights must hold weights of this UNet, and {file} does not: {error}"
            ) from error


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
        kind, config = self.config(data.image_size, data.channels)
        model = stages.seeded(partial(kind, config), derive_seed(self.seed, "weights"))
        return model, model

    def batch(self, data: GenerationData) -> Batch:
        """Return images."""
        return (data.train,)

    def loss(self, model: HVAE, batch: Batch, step: Step) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        return LossParts.of(model.training_losses(to_unit(batch[0]), generator=step.generator))

    def sample_options(self, data: GenerationData | None, model: nn.Module) -> dict[str, Any]:
        """Return what the model's `sample` takes: the training images are heat's prior."""
        return {"images": None if data is None else to_unit(data.train).to(device_of(model))}

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, images = model.config.num_levels, data.test[: self.settings.evaluation.bound_images]
        generator = generator_for(model, derive_seed(self.seed, "bound"))
        drawn = {"sampler": "ancestral", "sampling_steps": levels, "evaluations": levels}
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": mean_bound(model, images, generator=generator),
            "num_bound": len(images),
            "generation": drawn,
        }


Variant = DiffusionVariant | HvaeVariant


class Models(stages.ImageExperiment):
    """Train, draw, measure and report a model for each arm and seed."""

    parts = (stages.SAMPLES, PROCESS, MODELS, stages.CLASSIFIER)

    variant: ClassVar[type[Any]]

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._variants: dict[Job, Any] = {
            Job(arm, seed): self.variant(settings.one_model(arm, seed))
            for seed in settings.seeds
            for arm in settings.arms
        }
        self.jobs = list(self._variants)

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if the machine is not as the settings want it."""
        stages.check_one_process(self.settings.machine.device)
        return load_model_images(self.settings, options)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images, or a file of weights is not there."""
        for job, variant in self._variants.items():
            if job.seed == self.settings.seeds[0]:
                variant.check(data)
        for name in ("likelihood_images", "frame_error_images"):
            asked = getattr(self.settings.evaluation, name, 0)
            if asked > len(data.test):
                log.say(f"{name}={asked:,}: all {len(data.test):,} test images count")
        super().check(data)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        return self.described(data, ", ".join(self.settings.arms))

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train a model, draw from it, and return what was measured."""
        variant, folder = self._variants[job], at.path / MODELS / job.name
        reference = self.reference(data, at)
        train_model(variant, data, folder, recipe=at.recipe)
        self._draw_missing(job, data, at)
        model, finished = open_model(variant, folder, device=self.device)
        samples = stages.load_kept(stages.Samples, _file(at, stages.SAMPLES, job))
        found = variant.measure(model, data)
        drawn = {**reference.measure(samples.images), "seconds": float(samples.seconds)}
        return {
            "arm": job.row,
            "seed": job.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": finished["steps"],
            "training_seconds": finished["seconds"],
            **found,
            "generation": {**drawn, **found["generation"]},
        }

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text; samples that were deleted are drawn anew."""
        for job in self.jobs:
            try:
                if self._draw_missing(job, data, at):
                    log.say(f"samples of {job.name} were not there and are drawn anew")
            except FileNotFoundError as error:
                raise stages.lost(error, job, at) from error
        settings, drawn, logs = self.settings, dict[str, Drawn](), dict[str, list[Path]]()
        for arm in settings.arms:
            jobs = [Job(arm, seed) for seed in settings.seeds]
            samples = stages.load_kept(stages.Samples, _file(at, stages.SAMPLES, jobs[0]))
            drawn[arm] = Drawn(*samples[:2], stages.load_kept(Film, _file(at, PROCESS, jobs[0])))
            logs[arm] = [at.path / MODELS / job.name for job in jobs]
        own, shown = self._variants.values(), dict[str, Any]()
        if self.variant is DiffusionVariant:  # pseudo videos of each arm, and their context
            shown["videos"] = {v.name: (v.videos, v.context) for v in own if v.arm.is_video}
        report = generate_report(
            self.kind,
            list(results.values()),
            self.real(data, at),
            settings=settings.to_dict(),
            data=data,
            recipe=at.recipe,
            drawn=drawn,
            logs=logs,
            **shown,
        )
        return report.write(at.path)

    def _draw_missing(self, job: Job, data: GenerationData, at: RunFolder) -> bool:
        files = [_file(at, part, job) for part in (stages.SAMPLES, PROCESS)]
        if missing := not all(file.exists() for file in files):
            variant, num = self._variants[job], self.settings.evaluation.num_samples
            model, _ = open_model(variant, at.path / MODELS / job.name, device=self.device)
            seed, options = derive_seed(job.seed, "samples"), variant.sample_options(data, model)
            stages.save_kept(files[0], draw_samples(model, options, num, seed=seed))
            options["generator"] = generator_for(model, seed)
            stages.save_kept(files[1], film(model, min(num, _FILMED), **options))
        return missing


class Diffusion(Models):
    """Diffusion models of images and of their pseudo videos."""

    kind, command, variant = GENERATE_DIFFUSION, "generate diffusion", DiffusionVariant


class Hvae(Models):
    """Hierarchical VAEs whose encoder blurs, or is learned."""

    kind, command, variant = GENERATE_HVAE, "generate hvae", HvaeVariant


def _file(at: RunFolder, part: str, job: Job) -> Path:
    return at.path / part / f"{job.name}.npz"


def load_model_images(settings: Any, options: Options) -> GenerationData:
    """Return the images that a model learns from, black and white if so asked."""
    data = stages.load_images(settings, options)
    if not getattr(settings, "binarize", False):
        return data
    if data.channels != 1:
        raise ValueError(
            f"binarize is for grey images, and {data.name} has {data.channels} channels: "
            "turn it off"
        )
    parts = {
        name: (getattr(data, name) > _THRESHOLD).to(torch.uint8) * 255
        for name in ("train", "validation", "test")
    }
    note = f"{data.name}: pixels above {_THRESHOLD} white, all others black"
    return replace(data, **parts, notes=(*data.notes, note))


def train_model(variant: Variant, data: GenerationData, folder: Path, *, recipe: str) -> None:
    """Train a model, from where it stopped, and stages.store it in `pretrained/`.

    Under bf16 the weights of convolutions lie with their channels last, where these are fastest.
    """
    settings = variant.settings
    identity = config_values(variant.kind, recipe, settings.to_dict())
    if not settings.training.steps:  # published weights as they are
        if read_finished(folder) is None:
            prepare_run_dir(folder, identity, resume=True)
            shutil.rmtree(folder / stages.PRETRAINED, ignore_errors=True)
            stages.store(variant.build(data)[1], folder)
            write_json(folder / FINISHED, {"steps": 0, "seconds": 0.0})
        return

    def build() -> tuple[nn.Module, Pretrained]:
        trained, model = variant.build(data)
        if settings.machine.precision == "bf16":
            # Typed for tensors alone, in torch's own words.
            trained.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return trained, model

    stages.train(
        folder,
        build,
        variant.batch(data),
        settings.training.train_config(settings.machine, seed=variant.seed),
        loss=variant.loss,
        identity=identity,
        label=f"{variant.name}-seed{variant.seed}",
    )


def variant_of(folder: Path) -> Variant | None:
    """Return the variant whose model a folder holds; None where it holds none."""
    if diffusion := saved_settings(folder, DIFFUSION_MODEL, DiffusionSettings):
        return DiffusionVariant(diffusion[1])
    hvae = saved_settings(folder, HVAE_MODEL, HvaeSettings)
    return None if hvae is None else HvaeVariant(hvae[1])


def open_model(
    variant: Variant, folder: Path, *, device: torch.device
) -> tuple[Any, Mapping[str, Any]]:
    """Read a trained model, and how its training ended."""
    model, finished = stages.open_trained(folder, Pretrained, "model", found=True)
    size = variant.settings.reading.image_size or model.config.image_size
    kind, wanted = variant.config(size, model.config.channels)
    differing = {"class": (kind.__name__, type(model).__name__)}
    if type(model) is kind:
        differing = cast("Any", wanted).differs_from(model.config)
    if differing:
        name, (value, other) = next(iter(differing.items()))
        raise ValueError(
            f"{folder / stages.PRETRAINED} must hold the model that {folder / CONFIG} tells of, "
            f"with {name}={value}, and holds another one with {name}={other}: copy its own there, "
            "or train it anew"
        )
    return model.to(device), finished


def draw_samples(model: Any, options: dict[str, Any], num: int, *, seed: int) -> stages.Samples:
    """Draw samples from a model on its device."""

    def draw(count: int, generator: torch.Generator) -> Float[Tensor, "n t c h w"]:
        found = model.sample(count, generator=generator, batch_size=count, **options)
        return found if isinstance(model, VideoDiffusion) else found[:, None]

    return stages.collect_samples(draw, num, device_of(model), seed=seed)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model is."""
    return next(model.parameters()).device


def generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """Return a generator on a model's device."""
    return torch.Generator(device_of(model)).manual_seed(seed)


def _watched(name: str, unit: str, total: int, measure: Callable[..., Any]) -> Any:
    """Measure with a progress bar."""
    with log.bar(total=total, unit=unit) as bar:
        bar.set_description_str(name)
        return measure(progress=bar.update)
