"""`probseq generate diffusion` and `probseq generate hvae`: a model for each variant and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/` and `results/`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import CONFIG, read_json
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.experiments import stages
from probseq_apps.report.generate import generate_report
from probseq_apps.report.generate_plots import Drawn
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    GENERATE_DIFFUSION,
    GENERATE_HVAE,
    HVAE_MODEL,
    DiffusionSettings,
    HvaeSettings,
)
from pseudovideo.arms import DiffusionArm
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bound
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import Pretrained
from pseudovideo.spec import HVAEConfig, UNetConfig, unet_values

MODELS = "models"
# Images at once.
_BATCH = 250


class DiffusionVariant:
    """A diffusion model of images or of their pseudo videos, with one arm and one seed."""

    kind, settings_class = DIFFUSION_MODEL, DiffusionSettings

    def __init__(self, settings: DiffusionSettings) -> None:
        self.settings, self.seed = settings, settings.seeds[0]
        self.arm = DiffusionArm.parse(settings.arms[0])
        self.steps = self.arm.diffusion_steps or settings.process.num_steps
        self.videos = self.arm.videos(settings.frames)

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[VideoDiffusion | ImageDiffusion], UNetConfig]:
        """Return class and settings of the model of such images and of these classes."""
        options = {name: getattr(self.settings, name) for name in ("unet", "process", "frames")}
        classes = self.settings.classes.spec(counts)
        config = self.arm.config(image_size, channels, **options, classes=classes)
        return (VideoDiffusion if self.arm.is_video else ImageDiffusion), config

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            self.build(data)
        pseudo_videos(to_unit(data.train[:1]), self.videos)

    def build(self, data: GenerationData) -> tuple[DiffusionObjective, Pretrained]:
        """Return an objective, and the new model in it."""
        model = cast("Any", new_model(self, data))
        return DiffusionObjective(model, importance=self.settings.training.importance), model

    def loss(self, model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        frames = stages.videos_of(batch, self.videos, step, seed=self.seed)
        return LossParts.of(model(frames, *batch[2:], generator=step.generator))

    def sample_options(self, data: GenerationData | None, device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes."""
        guidance = self.settings.classes.guidance
        return {**self.settings.sampling.options(), "guidance": guidance}

    def measure(
        self, model: ImageDiffusion | VideoDiffusion, data: GenerationData
    ) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        sampling, asked = self.settings.sampling, self.settings.evaluation
        taken = sampling.sampling_steps or self.steps
        evaluations = taken
        likelihood, errors, counted = None, None, 0
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps)
            errors = self._frame_errors(model, data) if asked.frame_error_images else None
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            counted = len(images)
            generator = stages.generator_for(model, derive_seed(self.seed, "likelihood"))
            total = -(-counted // _BATCH) * self.steps
            with log.bar(total=total, unit=" steps", desc="likelihood") as bar:
                labels = stages.labels_of(self.settings.classes, data, "test", counted)
                likelihood = mean_bound(
                    model, images, labels, generator=generator, progress=bar.update
                )
        drawn: dict[str, Any] = {"sampler": sampling.sampler, "sampling_steps": taken}
        drawn["evaluations"] = evaluations * self.settings.classes.passes
        return {
            "frames": self.arm.frames,
            "corruption": self.arm.corruption,
            "context": self.arm.context(self.settings.frames) or None,
            "diffusion_steps": self.steps,
            "bits_per_dim": likelihood,
            "num_likelihood": counted,
            "frame_errors": errors,
            "generation": drawn,
        }

    def _frame_errors(self, model: VideoDiffusion, data: GenerationData) -> dict[str, Any]:
        asked = self.settings.evaluation
        images, samples = data.test[: asked.frame_error_images], asked.frame_error_samples
        labels = stages.labels_of(self.settings.classes, data, "test", len(images))
        total = (self.arm.frames - model.config.context) * len(images) * samples
        with log.bar(total=total, unit=" frames", desc="frame errors") as bar:
            return frame_prediction(
                *(model, self.videos, images, data.train),
                labels=labels,
                num_samples=samples,
                **self.settings.sampling.options(),
                seed=derive_seed(self.seed, "test videos"),
                generator=stages.generator_for(model, derive_seed(self.seed, "frame errors")),
                progress=bar.update,
            )


class HvaeVariant:
    """A hierarchical VAE whose encoder blurs, or is learned, with one arm and one seed."""

    kind, settings_class = HVAE_MODEL, HvaeSettings

    def __init__(self, settings: HvaeSettings) -> None:
        self.settings, self.seed = settings, settings.seeds[0]

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[HVAE], HVAEConfig]:
        """Return class and settings of the model of such images and of these classes."""
        settings, (arm,) = self.settings, self.settings.arms
        classes = settings.classes.spec(counts)
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels, classes)
        kind = HeatHVAE if arm == "heat" else LearnedEncoderHVAE
        return kind, HVAEConfig(**values, **settings.levels_of(arm).to_dict())

    def check(self, data: GenerationData) -> None:
        """Raise if sizes don't fit the images."""
        with torch.device("meta"):
            self.build(data)

    def build(self, data: GenerationData) -> tuple[stages.Objective, HVAE]:
        """Return an objective, and the new model in it."""
        model = cast("HVAE", new_model(self, data))
        return stages.Objective(model, "training_losses"), model

    def loss(self, model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        images = to_unit(batch[0])
        return LossParts.of(model(images, *batch[2:], generator=step.generator))

    def sample_options(self, data: GenerationData | None, device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes: the training images are heat's prior."""
        options: dict[str, Any] = {"images": None, "guidance": self.settings.classes.guidance}
        if data is not None:
            options["images"] = to_unit(data.train).to(device)
            options["image_labels"] = stages.labels_of(self.settings.classes, data, "train")
        return options

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, images = model.config.num_levels, data.test[: self.settings.evaluation.bound_images]
        evaluations = levels * self.settings.classes.passes
        drawn = {"sampler": "ancestral", "sampling_steps": levels, "evaluations": evaluations}
        labels = stages.labels_of(self.settings.classes, data, "test", len(images))
        generator = stages.generator_for(model, derive_seed(self.seed, "bound"))
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": mean_bound(model, images, labels, generator=generator),
            "num_bound": len(images),
            "generation": drawn,
        }


Variant: TypeAlias = DiffusionVariant | HvaeVariant
TrainedVariant: TypeAlias = stages.Trained[Variant, Any]
ModelSettings: TypeAlias = DiffusionSettings | HvaeSettings


def new_model(variant: Variant, data: GenerationData) -> Pretrained:
    """Return a model whose weights depend on the seed alone."""
    counts = stages.conditioning_classes(variant.settings.classes, data)
    kind, config = variant.config(data.image_size, data.channels, counts)
    make = partial(cast("Any", kind), config)
    return stages.seeded(make, derive_seed(variant.seed, "weights"))


def training_of(variant: Variant, data: GenerationData) -> stages.Training:
    """Return a new model, images and their numbers, and of classes the labels."""
    objective, model = variant.build(data)
    batch = (data.train, torch.arange(len(data.train)))
    labels = stages.labels_of(variant.settings.classes, data, "train")
    training, machine = variant.settings.training, variant.settings.machine
    config = training.train_config(machine, seed=variant.seed)
    if labels is not None:
        batch = (*batch, labels)
    return stages.Training(objective, model, batch, variant.loss, config, torch.channels_last)


def find_variant(folder: Path) -> Variant | None:
    """Return the variant whose model a folder holds; None where it holds none."""
    for kind in (DiffusionVariant, HvaeVariant):
        saved = saved_settings(stages.run_folder(folder), kind.kind, kind.settings_class)
        if saved is not None:
            return kind(cast("Any", saved[1]))
    return None


def train_variant(
    variant: Variant, data: GenerationData, folder: Path, *, recipe: str, label: str
) -> TrainedVariant:
    """Train a model, from where it stopped, and store it in `pretrained/`."""
    identity = config_values(variant.kind, recipe, variant.settings.to_dict())
    if classes := stages.conditioning_classes(variant.settings.classes, data):
        identity["classes"] = classes
    stages.train_model(partial(training_of, variant, data), folder, identity, label=label)
    return read_variant(variant, folder)


def read_variant(variant: Variant, folder: Path) -> TrainedVariant:
    """Read the model; raise if it is not trained, damaged, or not that of the settings."""
    trained = stages.read_model(folder, variant, Pretrained, "model")
    model: Any = trained.model
    size = variant.settings.reading.image_size or model.config.image_size
    counts = read_json(folder / CONFIG).get("classes", {})
    wanted: Any
    kind, wanted = variant.config(size, model.config.channels, counts)
    differing = {"class": (kind.__name__, type(model).__name__)}
    if type(model) is kind:
        differing = wanted.differs_from(model.config)
    for name, (value, other) in differing.items():
        raise ValueError(
            f"{folder / stages.PRETRAINED} must hold the model that {folder / CONFIG} tells "
            f"of, with {name}={value}, and holds another one with {name}={other}: copy its own "
            "there, or train it anew"
        )
    return trained


# -- From load to report --------------------------------------------------------------------------


def variants_of(settings: ModelSettings) -> dict[Job, Variant]:
    """Return a model for each arm and seed."""
    kind: Any = DiffusionVariant if isinstance(settings, DiffusionSettings) else HvaeVariant
    make: Any = settings.one_model
    return {
        Job(arm, seed): kind(make(arm, seed)) for seed in settings.seeds for arm in settings.arms
    }


def check(settings: ModelSettings, run: stages.ImageRun) -> None:
    """Raise if sizes or weights don't fit the images, or a file of weights is not there."""
    for job, variant in variants_of(settings).items():
        if job.seed == settings.seeds[0]:
            variant.check(run.data)
    stages.check_run(settings, run.data)


def describe(settings: ModelSettings, run: stages.ImageRun) -> str:
    """Return a line about data and jobs."""
    return stages.describe_run(settings, run.data, ", ".join(settings.arms))


def train_and_measure(
    settings: ModelSettings, run: stages.ImageRun, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train a model, draw from it, and return what was measured."""
    variant, folder = variants_of(settings)[job], at.path / MODELS / job.name
    distributed.main_alone(partial(run.reference, at))
    trained = train_variant(variant, run.data, folder, recipe=at.recipe, label=job.name)
    model = trained.model.to(stages.device_of(settings))
    file = draw_file(settings, run, job, at)
    measured = distributed.main_alone(partial(variant.measure, model, run.data)) or {}

    def drawn() -> dict[str, Any]:
        samples = stages.load_drawn(file)
        reference = run.reference(at)
        metrics = {**reference.measure(samples.images), "seconds": float(samples.seconds)}
        if isinstance(variant, DiffusionVariant) and samples.videos.shape[1] > 1:
            metrics["frames"] = reference.measure_videos(samples.videos, variant.videos)
        return metrics

    return {
        "arm": job.row,
        "seed": job.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": trained.steps,
        "training_seconds": trained.seconds,
        **measured,
        "generation": (distributed.main_alone(drawn) or {}) | measured.get("generation", {}),
    }


def report(settings: ModelSettings, run: stages.ImageRun, results: Results, at: RunFolder) -> str:
    """Write the report and return it as text; samples that were deleted are drawn anew."""
    drawn, logs, variants = dict[str, Drawn](), dict[str, list[Path]](), variants_of(settings)
    files = {job: draw_file(settings, run, job, at) for job in variants}
    for job, samples_file in files.items():
        logs.setdefault(job.row, []).append(at.path / MODELS / job.name)
        if job.seed == settings.seeds[0]:
            samples = stages.load_drawn(samples_file)
            drawn[job.row] = Drawn(
                samples.images,
                samples.videos,
                samples.labels,
            )
    shown: dict[str, Any] = {"drawn": drawn, "logs": logs}
    kind = GENERATE_HVAE
    if isinstance(settings, DiffusionSettings):  # pseudo videos of each arm, and their context
        kind = GENERATE_DIFFUSION
        models = [v for v in variants.values() if isinstance(v, DiffusionVariant)]
        shown["videos"] = {
            v.arm.name: (v.videos, v.arm.context(settings.frames)) for v in models if v.arm.is_video
        }
    shown |= {"settings": settings.to_dict(), "data": run.data, "recipe": at.recipe}
    return generate_report(kind, [*results.values()], run.real(at), **shown).write(at.path)


DIFFUSION_WORKFLOW = Workflow[ModelSettings, stages.ImageRun](
    kind=GENERATE_DIFFUSION,
    command="generate diffusion",
    folders=(stages.SAMPLES, MODELS, stages.CLASSIFIER),
    jobs=variants_of,
    load=stages.load,
    config=stages.run_config,
    check=check,
    describe=describe,
    prepare=stages.make_features,
    run=train_and_measure,
    report=report,
)
HVAE_WORKFLOW = replace(DIFFUSION_WORKFLOW, kind=GENERATE_HVAE, command="generate hvae")


def draw_file(settings: ModelSettings, run: stages.ImageRun, job: Job, at: RunFolder) -> Path:
    """Return the file of samples, drawn where it is missing."""
    file = at.path / stages.SAMPLES / f"{job.name}.npz"

    def draw() -> stages.Samples:
        variant, device = variants_of(settings)[job], stages.device_of(settings)
        num, seed = settings.evaluation.num_samples, derive_seed(job.seed, "samples")
        model = read_variant(variant, at.path / MODELS / job.name).model.to(device)
        options = variant.sample_options(run.data, device)
        labels = stages.labels_for(model, num, seed=seed)
        return stages.draw_timed(model, num, seed=seed, labels=labels, **options)

    stages.store_drawn(file, draw, job.name, job, at)
    return file
