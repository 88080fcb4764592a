"""`probseq generate diffusion` and `probseq generate hvae`: a model for each variant and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import log
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import CONFIG, read_json
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Job, Results, RunFolder
from probseq_apps.experiments import stages
from probseq_apps.options import Options
from probseq_apps.report.generate_plots import Drawn
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    GENERATE_DIFFUSION,
    GENERATE_HVAE,
    HVAE_MODEL,
    DiffusionSettings,
    HvaeSettings,
)
from pseudovideo.arms import DiffusionArm
from pseudovideo.beyond.interpolation import interpolate
from pseudovideo.beyond.solvers import SOLVERS
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.sampling import sampling_process
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bound
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.integrations.improved_ddpm import load_improved_ddpm
from pseudovideo.pixels import to_bytes, to_unit
from pseudovideo.pretrained import Pretrained
from pseudovideo.samples import Film, film
from pseudovideo.spec import (
    HVAEConfig,
    UNetConfig,
    unet_values,
)

MODELS, PROCESS, BETWEEN = "models", "process", "interpolations"
# Levels above are white.
_THRESHOLD = 127
# Samples of a film; images at once; samples beside training images; pairs of samples.
_FILMED, _BATCH, _COPIES, _PAIRS = 16, 250, 8, 4


class Variant(stages.Part[GenerationData]):
    """A model of images or of pseudo videos, with one arm and one seed in its settings."""

    name, model_class, layout = "model", Pretrained, torch.channels_last

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.seed: int = settings.seeds[0]

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images and of these classes."""
        raise NotImplementedError

    def classes(self, data: GenerationData) -> dict[str, int]:
        """Return the training images of each class that the model is told of, if of any."""
        return stages.told_classes(self.settings.classes, data)

    def labels(
        self, data: GenerationData, part: Literal["train", "test"], count: int | None = None
    ) -> Tensor | None:
        """Return a part's first labels, as the model is told them; None of one without classes."""
        return stages.labels_of(self.settings.classes, data, part, count)

    def batch(self, data: GenerationData) -> Batch:
        """Return images and their numbers, and of classes the labels."""
        own = self.labels(data, "train")
        return super().batch(data) if own is None else (*super().batch(data), own)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            self.build(data)

    def build(self, data: GenerationData) -> tuple[nn.Module, Any]:
        """Return a new model, twice."""
        kind, config = self.config(data.image_size, data.channels, self.classes(data))
        make = partial(cast("Any", kind), config)
        model = stages.seeded(make, derive_seed(self.seed, "weights"))
        return model, model

    def train_config(self) -> TrainConfig | None:
        """Return the settings of the training loop; None for published weights as they are."""
        training, machine = self.settings.training, self.settings.machine
        return training.train_config(machine, seed=self.seed) if training.steps else None

    def read(self, folder: Path) -> stages.Trained:
        """Read the model; raise if it is not trained, damaged, or not that of the settings."""
        trained = super().read(folder)
        found = trained.model.config
        size = self.settings.reading.image_size or found.image_size
        counts = read_json(folder / CONFIG).get("classes", {})
        kind, wanted = self.config(size, found.channels, counts)
        differing = {"class": (kind.__name__, type(trained.model).__name__)}
        if type(trained.model) is kind:
            differing = wanted.differs_from(found)
        for name, (value, other) in differing.items():
            raise ValueError(
                f"{folder / stages.PRETRAINED} must hold the model that {folder / CONFIG} tells "
                f"of, with {name}={value}, and holds another one with {name}={other}: copy its own "
                "there, or train it anew"
            )
        return trained

    def sample_options(self, data: GenerationData | None, device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes."""
        raise NotImplementedError

    def generator(self, model: nn.Module, purpose: str) -> torch.Generator:
        """Return a generator on the model's device."""
        return stages.generator_for(model, derive_seed(self.seed, purpose))


class DiffusionVariant(Variant):
    """A diffusion model of images or of their pseudo videos."""

    kind, settings_class = DIFFUSION_MODEL, DiffusionSettings

    def __init__(self, settings: DiffusionSettings) -> None:
        super().__init__(settings)
        self.arm = DiffusionArm.parse(settings.arms[0])
        self.steps = self.arm.diffusion_steps or settings.process.num_steps
        self.videos = self.arm.videos(settings.frames)

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images and of these classes."""
        given = {name: getattr(self.settings, name) for name in ("unet", "process", "frames")}
        classes = self.settings.classes.spec(counts)
        config = self.arm.config(image_size, channels, **given, classes=classes)
        return (VideoDiffusion if self.arm.is_video else ImageDiffusion), config

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        if self.settings.init_weights is None:
            super().check(data)
        else:
            self.build(data)
        pseudo_videos(to_unit(data.train[:1]), self.videos)

    def build(self, data: GenerationData) -> tuple[nn.Module, Any]:
        """Return an objective, and the new model in it, with published weights if named."""
        file, importance = self.settings.init_weights, self.settings.training.importance
        if file is None:
            _, model = super().build(data)
        else:
            try:
                config = cast("Any", self.config(data.image_size, data.channels, {})[1])
                model = load_improved_ddpm(file, config)
            except (FileNotFoundError, ValueError) as error:
                raise type(error)(
                    f"init_weights must hold weights of this UNet: {error}"
                ) from error
        return DiffusionObjective(model, importance=importance), model

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        frames = stages.videos_of(batch, self.videos, step, seed=self.seed)
        return LossParts.of(model(frames, *batch[2:], generator=step.generator))

    def sample_options(self, data: GenerationData | None, device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes."""
        return {**self._sampling(), "guidance": self.settings.classes.guidance}

    def _sampling(self) -> dict[str, Any]:
        options = self.settings.sampling.options()
        return options | {"solver": SOLVERS.get(options["solver"])}

    def measure(
        self, model: ImageDiffusion | VideoDiffusion, data: GenerationData
    ) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        sampling, asked = self.settings.sampling, self.settings.evaluation
        taken, solver = sampling.sampling_steps or self.steps, self._sampling()["solver"]
        process = sampling_process(model.diffusion, sampling.sampling_steps, None, solver)
        evaluations = process.num_steps if solver is None else solver.evaluations(process)
        likelihood, errors, counted = None, None, 0
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps, solver)
            errors = self._frame_errors(model, data) if asked.frame_error_images else None
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            counted = len(images)
            generator, total = self.generator(model, "likelihood"), -(-counted // _BATCH)
            with log.bar(total=total * self.steps, unit=" steps", desc="likelihood") as bar:
                given: Any = {"generator": generator, "progress": bar.update}
                labels = self.labels(data, "test", counted)
                likelihood = mean_bound(model, images, labels, **given)
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
        labels = self.labels(data, "test", len(images))
        total = (self.arm.frames - model.config.context) * len(images) * samples
        with log.bar(total=total, unit=" frames", desc="frame errors") as bar:
            return frame_prediction(
                *(model, self.videos, images, data.train),
                labels=labels,
                num_samples=samples,
                **self._sampling(),
                seed=derive_seed(self.seed, "test videos"),
                generator=self.generator(model, "frame errors"),
                progress=bar.update,
            )


class HvaeVariant(Variant):
    """A hierarchical VAE whose encoder blurs, or is learned."""

    kind, settings_class = HVAE_MODEL, HvaeSettings

    def config(
        self, image_size: int, channels: int, counts: Mapping[str, int]
    ) -> tuple[type[HVAE], HVAEConfig]:
        """Return class and settings of the model of such images and of these classes."""
        settings, (arm,) = self.settings, self.settings.arms
        classes = settings.classes.spec(counts)
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels, classes)
        kind = HeatHVAE if arm == "heat" else LearnedEncoderHVAE
        return kind, HVAEConfig(**values, **settings.levels_of(arm).to_dict())

    def loss(self, model: HVAE, batch: Batch, step: Step) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        given = (to_unit(batch[0]), *batch[2:])
        return LossParts.of(model.training_losses(*given, generator=step.generator))

    def sample_options(self, data: GenerationData | None, device: torch.device) -> dict[str, Any]:
        """Return what the model's `sample` takes: the training images are heat's prior."""
        given: dict[str, Any] = {"images": None, "guidance": self.settings.classes.guidance}
        if data is not None:
            given["images"] = to_unit(data.train).to(device)
            given["image_labels"] = self.labels(data, "train")
        return given

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, images = model.config.num_levels, data.test[: self.settings.evaluation.bound_images]
        evaluations = levels * self.settings.classes.passes
        drawn = {"sampler": "ancestral", "sampling_steps": levels, "evaluations": evaluations}
        labels = self.labels(data, "test", len(images))
        generator = self.generator(model, "bound")
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": mean_bound(model, images, labels, generator=generator),
            "num_bound": len(images),
            "generation": drawn,
        }


class Models(stages.ImageExperiment):
    """Train, draw, measure and report a model for each arm and seed."""

    parts = (stages.SAMPLES, PROCESS, BETWEEN, MODELS, stages.CLASSIFIER)
    drawn = (stages.SAMPLES, PROCESS, BETWEEN)
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
        super().check(data)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        return self.described(data, ", ".join(self.settings.arms))

    def seconds(self, jobs: Sequence[Job], data: GenerationData) -> float:
        """Return about how long the trainings of jobs take, by one seed of each arm."""
        rows = Counter(job.row for job in jobs)
        ones = {job.row: variant for job, variant in self._variants.items()}
        return sum((n * ones[row].training_seconds(data) for row, n in rows.items()), 0.0)

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train a model, draw from it, and return what was measured."""
        variant, reference = self._variants[job], self.reference(data, at)
        folder = at.path / MODELS / job.name
        trained = variant.train(data, folder, recipe=at.recipe, label=job.name)
        samples = stages.load_kept(stages.Samples, self._drawn(job, data, at)[0])
        model = trained.model.to(self.device)
        found = variant.measure(model, data)
        drawn = {**reference.measure(samples.images), "seconds": float(samples.seconds)}
        if samples.videos.shape[1] > 1:
            drawn["frames"] = reference.measure_videos(samples.videos, variant.videos)
        return {
            "arm": job.row,
            "seed": job.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": trained.steps,
            "training_seconds": trained.seconds,
            **found,
            "generation": {**drawn, **found["generation"]},
        }

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text; samples that were deleted are drawn anew."""
        settings, drawn, logs = self.settings, dict[str, Drawn](), dict[str, list[Path]]()
        files = {job: self._drawn(job, data, at) for job in self.jobs}
        reference = self.reference(data, at)
        for job, (samples, process, between) in files.items():
            logs.setdefault(job.row, []).append(at.path / MODELS / job.name)
            if job.seed == settings.seeds[0]:
                found = stages.load_kept(stages.Samples, samples)
                own = stages.load_kept(Film, process), stages.load_kept(stages.Between, between)
                copies = reference.copies(found.images, _COPIES)
                drawn[job.row] = Drawn(
                    found.images, found.videos, own[0], own[1].images, copies, found.labels
                )
        shown = dict[str, Any]()
        if self.variant is DiffusionVariant:  # pseudo videos of each arm, and their context
            arms = [(v.arm, v.videos) for v in self._variants.values() if v.arm.is_video]
            shown["videos"] = {a.name: (one, a.context(settings.frames)) for a, one in arms}
        given: Any = {"drawn": drawn, "logs": logs, "features": reference.extractor.name}
        return self.write_report(data, [*results.values()], at, **given, **shown)

    def _drawn(self, job: Job, data: GenerationData, at: RunFolder) -> list[Path]:
        def make() -> tuple[stages.Samples, Film, stages.Between]:
            variant, num = self._variants[job], self.settings.evaluation.num_samples
            model = variant.read(at.path / MODELS / job.name).model.to(self.device)
            options = variant.sample_options(data, self.device)
            seed, generator = derive_seed(job.seed, "samples"), variant.generator(model, "samples")
            labels, few = stages.labels_for(model, num, seed=seed), min(num, _FILMED)
            first, pairs = (None if labels is None else labels[:n] for n in (few, _PAIRS))
            process = film(model, few, labels=first, generator=generator, **options)
            # Between two samples by DDIM without noise, whatever draws them
            own = {name: given for name, given in options.items() if name not in ("eta", "solver")}
            own["generator"] = variant.generator(model, "interpolations")
            between = stages.Between(to_bytes(interpolate(model, _PAIRS, labels=pairs, **own)))
            samples = stages.draw_timed(model, num, seed=seed, labels=labels, **options)
            return samples, process, between

        return self.draw(job.name, job, at, make)


class Diffusion(Models):
    """Diffusion models of images and of their pseudo videos."""

    kind, command, variant = GENERATE_DIFFUSION, "generate diffusion", DiffusionVariant


class Hvae(Models):
    """Hierarchical VAEs whose encoder blurs, or is learned."""

    kind, command, variant = GENERATE_HVAE, "generate hvae", HvaeVariant


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


def variant_of(folder: Path) -> Variant | None:
    """Return the variant whose model a folder holds; None where it holds none."""
    return DiffusionVariant.find(folder) or HvaeVariant.find(folder)
