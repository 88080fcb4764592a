"""`probseq generate diffusion` and `probseq generate hvae`: a model for each maker and seed.

The folder has `models/VARIANT-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/` and `results/`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from probseq.pretrained import Pretrained
from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_arrays, save_arrays
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import RESULTS, Job, Results, RunFolder, Workflow
from probseq_apps.experiments import generate_common as common
from probseq_apps.report.generate import generate_report
from probseq_apps.settings.common import saved_settings
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    GENERATE_DIFFUSION,
    GENERATE_HVAE,
    HVAE_MODEL,
    DiffusionSettings,
    HvaeSettings,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bound
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pixels import to_unit
from pseudovideo.spec import HVAEConfig, UNetConfig, unet_values
from pseudovideo.variants import DiffusionVariant

MODELS = "models"
# Of a model of heat, whose prior they are.
_IMAGES = "images.npz"
# Images at once.
_BATCH = 250


class DiffusionMaker:
    """A diffusion model of images or of their pseudo videos, with one variant and one seed."""

    kind, settings_class = DIFFUSION_MODEL, DiffusionSettings

    def __init__(self, settings: DiffusionSettings) -> None:
        self.settings, self.seed = settings, settings.seeds[0]
        self.variant = DiffusionVariant.parse(settings.variants[0])
        self.steps = self.variant.diffusion_steps or settings.process.num_steps
        self.videos = self.variant.videos(settings.frames)

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[VideoDiffusion | ImageDiffusion], UNetConfig]:
        """Return class and settings of the model of such images and of these classes."""
        options = {name: getattr(self.settings, name) for name in ("unet", "process", "frames")}
        classes = self.settings.classes.spec(counts)
        config = self.variant.config(image_size, channels, **options, classes=classes)
        return (VideoDiffusion if self.variant.is_video else ImageDiffusion), config

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            self.build(data)
        pseudo_videos(to_unit(data.train[:1]), self.videos)

    def build(self, data: GenerationData) -> tuple[DiffusionObjective, Pretrained]:
        """Return an objective, and the new model in it."""
        model = cast("Any", new_model(self, data))
        return DiffusionObjective(model), model

    def loss(self, model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        frames = common.videos_of(batch, self.videos, step, seed=self.seed)
        return LossParts.of(model(frames, *batch[2:], generator=step.generator))

    def sample_options(self, images: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
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
            generator = common.generator_for(model, derive_seed(self.seed, "likelihood"))
            total = -(-counted // _BATCH) * self.steps
            with log.bar(total=total, unit=" steps", desc="likelihood") as bar:
                labels = common.labels_of(self.settings.classes, data, "test", counted)
                likelihood = mean_bound(
                    model, images, labels, generator=generator, progress=bar.update
                )
        return {
            "frames": self.variant.frames,
            "corruption": self.variant.corruption,
            "context": self.variant.context(self.settings.frames) or None,
            "diffusion_steps": self.steps,
            "bits_per_dim": likelihood,
            "num_likelihood": counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": taken,
                "evaluations": evaluations * self.settings.classes.passes,
            },
        }

    def _frame_errors(self, model: VideoDiffusion, data: GenerationData) -> dict[str, Any]:
        asked = self.settings.evaluation
        images, samples = data.test[: asked.frame_error_images], asked.frame_error_samples
        labels = common.labels_of(self.settings.classes, data, "test", len(images))
        total = (self.variant.frames - model.config.context) * len(images) * samples
        with log.bar(total=total, unit=" frames", desc="frame errors") as bar:
            return frame_prediction(
                *(model, self.videos, images, data.train),
                labels=labels,
                num_samples=samples,
                **self.settings.sampling.options(),
                seed=derive_seed(self.seed, "test videos"),
                generator=common.generator_for(model, derive_seed(self.seed, "frame errors")),
                progress=bar.update,
            )


class HvaeMaker:
    """A hierarchical VAE whose encoder blurs, or is learned, with one variant and one seed."""

    kind, settings_class = HVAE_MODEL, HvaeSettings

    def __init__(self, settings: HvaeSettings) -> None:
        self.settings, self.seed = settings, settings.seeds[0]

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[HVAE], HVAEConfig]:
        """Return class and settings of the model of such images and of these classes."""
        settings, (variant,) = self.settings, self.settings.variants
        classes = settings.classes.spec(counts)
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels, classes)
        kind = HeatHVAE if variant == "heat" else LearnedEncoderHVAE
        return kind, HVAEConfig(**values, **settings.levels_of(variant).to_dict())

    def check(self, data: GenerationData) -> None:
        """Raise if sizes don't fit the images."""
        with torch.device("meta"):
            self.build(data)

    def build(self, data: GenerationData) -> tuple[common.LossModule, HVAE]:
        """Return an objective, and the new model in it."""
        model = cast("HVAE", new_model(self, data))
        return common.LossModule(model, "training_losses"), model

    def loss(self, model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        images = to_unit(batch[0])
        return LossParts.of(model(images, *batch[2:], generator=step.generator))

    def sample_options(self, images: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes: the stored images are heat's prior."""
        options: dict[str, Any] = {"images": None, "guidance": self.settings.classes.guidance}
        if images:
            options["images"] = to_unit(images["images"]).to(device)
            options["image_labels"] = images.get("labels")
        return options

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, images = model.config.num_levels, data.test[: self.settings.evaluation.bound_images]
        evaluations = levels * self.settings.classes.passes
        labels = common.labels_of(self.settings.classes, data, "test", len(images))
        generator = common.generator_for(model, derive_seed(self.seed, "bound"))
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": mean_bound(model, images, labels, generator=generator),
            "num_bound": len(images),
            "generation": {
                "sampler": "ancestral",
                "sampling_steps": levels,
                "evaluations": evaluations,
            },
        }


Maker: TypeAlias = DiffusionMaker | HvaeMaker
ModelSettings: TypeAlias = DiffusionSettings | HvaeSettings


def new_model(maker: Maker, data: GenerationData) -> Pretrained:
    """Return a model whose weights depend on the seed alone."""
    counts = common.conditioning_classes(maker.settings.classes, data)
    kind, config = maker.config(data.image_size, data.channels, counts)
    make = partial(cast("Any", kind), config)
    return common.seeded(make, derive_seed(maker.seed, "weights"))


def training_of(maker: Maker, data: GenerationData) -> common.TrainingJob:
    """Return a new model, images and their numbers, and of classes the labels."""
    objective, model = maker.build(data)
    batch = (data.train, torch.arange(len(data.train)))
    labels = common.labels_of(maker.settings.classes, data, "train")
    training, machine = maker.settings.training, maker.settings.machine
    config = training.train_config(machine, seed=maker.seed)
    if labels is not None:
        batch = (*batch, labels)
    return common.TrainingJob(objective, model, batch, maker.loss, config, torch.channels_last)


def find_maker(folder: Path) -> Maker:
    """Return the maker whose model a folder holds; raise if it holds none."""
    for kind in (DiffusionMaker, HvaeMaker):
        saved = saved_settings(folder, kind.kind, kind.settings_class)
        if saved is not None:
            return kind(cast("Any", saved[1]))
    raise FileNotFoundError(
        "model must be a folder in models/ of `generate diffusion` or `generate hvae`, or in "
        f"priors/ of `generate run`, and {folder} is none"
    )


def train_maker(
    maker: Maker, data: GenerationData, folder: Path, *, recipe: str
) -> Mapping[str, Any]:
    """Train a model, from where it stopped, and store it in `pretrained/`; see `train_model`."""
    make = partial(training_of, maker, data)
    ended = common.train_model(make, folder, maker.kind, recipe, maker.settings, data)
    if isinstance(maker, HvaeMaker) and maker.settings.variants == ("heat",):
        labels = common.labels_of(maker.settings.classes, data, "train")
        images = {"images": data.train} | ({} if labels is None else {"labels": labels})
        distributed.main_alone(partial(save_arrays, folder / _IMAGES, images))
    return ended


def stored_images(folder: Path) -> dict[str, Tensor]:
    """Return the training images, with their labels, of a model that starts samples from them."""
    file = folder / _IMAGES
    return load_arrays(file) if file.is_file() else {}


def read_image_model(folder: Path) -> Any:
    """Read the model of a folder; raise if it is not trained, or damaged."""
    return common.read_model(folder, Pretrained, "model")


# -- From load to report --------------------------------------------------------------------------


def makers_of(settings: ModelSettings) -> dict[Job, Maker]:
    """Return a model for each variant and seed."""
    kind: Any = DiffusionMaker if isinstance(settings, DiffusionSettings) else HvaeMaker
    make: Any = settings.model_settings
    return {
        Job(variant, seed): kind(make(variant, seed))
        for seed in settings.seeds
        for variant in settings.variants
    }


def check(settings: ModelSettings, run: common.ImageRun) -> None:
    """Raise if sizes or weights don't fit the images, or a file of weights is not there."""
    for job, maker in makers_of(settings).items():
        if job.seed == settings.seeds[0]:
            maker.check(run.data)
    common.check_run(settings, run.data)


def describe(settings: ModelSettings, run: common.ImageRun) -> str:
    """Return a line about data and jobs."""
    return common.describe_run(settings, run.data, ", ".join(settings.variants))


def seconds(settings: ModelSettings, run: common.ImageRun) -> dict[Job, float]:
    """Return about how long each model trains."""
    makers, device = makers_of(settings), common.device_of(settings)
    of_row = {
        job.row: training_of(maker, run.data).seconds(device)
        for job, maker in makers.items()
        if job.seed == settings.seeds[0]
    }
    return {job: of_row[job.row] for job in makers}


def train_and_measure(
    settings: ModelSettings, run: common.ImageRun, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train a model, draw from it, and return what was measured."""
    maker, folder = makers_of(settings)[job], at.path / MODELS / job.name
    distributed.main_alone(partial(run.reference, at))
    ended = train_maker(maker, run.data, folder, recipe=at.recipe)
    model = read_image_model(folder).to(common.device_of(settings))
    file = draw_file(settings, run, job, at)
    measured = distributed.main_alone(partial(maker.measure, model, run.data)) or {}

    def measure_samples() -> dict[str, Any]:
        samples = common.load_samples(file)
        return {**run.reference(at).measure(samples.images), "seconds": float(samples.seconds)}

    return {
        "variant": job.row,
        "seed": job.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": ended["steps"],
        "training_seconds": ended["seconds"],
        **measured,
        "generation": (distributed.main_alone(measure_samples) or {})
        | measured.get("generation", {}),
    }


def report(settings: ModelSettings, run: common.ImageRun, results: Results, at: RunFolder) -> str:
    """Write the report and return it as text."""
    logs, makers = dict[str, list[Path]](), makers_of(settings)
    of_models: dict[str, common.Samples] = {}
    for job in makers:
        logs.setdefault(job.row, []).append(at.path / MODELS / job.name)
        if job.seed == settings.seeds[0]:
            file = at.path / common.SAMPLES / f"{job.name}.npz"
            of_models[job.row] = common.load_samples(at.made_by(job, file))
    is_diffusion = isinstance(settings, DiffusionSettings)
    return generate_report(
        GENERATE_DIFFUSION if is_diffusion else GENERATE_HVAE,
        [*results.values()],
        run.real(at),
        settings=settings.to_dict(),
        data=run.data,
        recipe=at.recipe,
        folder=at.path,
        samples=of_models,
        logs=logs,
        videos={
            maker.variant.name: (maker.videos, maker.variant.context(maker.settings.frames))
            for maker in makers.values()
            if isinstance(maker, DiffusionMaker) and maker.variant.is_video
        },
    ).write(at.path)


DIFFUSION_WORKFLOW = Workflow[ModelSettings, common.ImageRun](
    kind=GENERATE_DIFFUSION,
    command="generate diffusion",
    folders=(common.SAMPLES, MODELS, common.CLASSIFIER),
    jobs=makers_of,
    load=common.load,
    config=common.run_config,
    check=check,
    describe=describe,
    seconds=seconds,
    longer={"settings.training.steps": (RESULTS, common.SAMPLES)},
    prepare=common.make_features,
    run=train_and_measure,
    report=report,
)
HVAE_WORKFLOW = replace(DIFFUSION_WORKFLOW, kind=GENERATE_HVAE, command="generate hvae")


def draw_file(settings: ModelSettings, run: common.ImageRun, job: Job, at: RunFolder) -> Path:
    """Return the file of samples, drawn where it is missing."""
    file = at.path / common.SAMPLES / f"{job.name}.npz"

    def draw() -> common.Samples:
        maker, device = makers_of(settings)[job], common.device_of(settings)
        num, seed = settings.evaluation.num_samples, derive_seed(job.seed, "samples")
        folder = at.path / MODELS / job.name
        model = read_image_model(folder).to(device)
        options = maker.sample_options(stored_images(folder), device)
        labels = common.labels_for(model, num, seed=seed)
        return common.draw_timed(model, num, seed=seed, labels=labels, **options)

    common.store_samples(file, draw)
    return file
