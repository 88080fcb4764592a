"""`probseq generate diffusion` and `probseq generate hvae`: one model for each arm and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiment import Job, Results
from probseq_apps.experiments.diffusion_draw import draw_model, film_model
from probseq_apps.experiments.diffusion_measure import mean_bits_per_dim, measure_frames
from probseq_apps.experiments.diffusion_model import (
    Diffusion,
    arm_videos,
    check_model,
    load_diffusion_images,
    open_diffusion,
    train_model,
)
from probseq_apps.experiments.diffusion_settings import GENERATE_DIFFUSION, DiffusionSettings
from probseq_apps.experiments.drawn import image_facts, load_drawn
from probseq_apps.experiments.generate_evaluation import evaluate_generation
from probseq_apps.experiments.generate_files import (
    MODEL_PARTS,
    model_folder,
    model_samples_file,
    process_file,
    read_result,
    reference_file,
)
from probseq_apps.experiments.generate_models import Trained, told_steps
from probseq_apps.experiments.generate_ruler import Ruler, check_features, make_ruler
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.hvae_model import (
    build_hvae,
    draw_hvae,
    film_hvae,
    load_hvae_images,
    measure_hvae,
    open_hvae,
    train_hvae,
)
from probseq_apps.experiments.hvae_settings import (
    GENERATE_HVAE,
    HvaeArm,
    HvaeSettings,
    OneHvaeSettings,
)
from probseq_apps.experiments.process import Process
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report import generate_plots
from probseq_apps.report.generate import diffusion_report, hvae_report
from probseq_apps.report.generate_plots import Drawn, Videos, draw_diffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.hvae import HVAE

Settings = TypeVar("Settings", DiffusionSettings, HvaeSettings)
Model = TypeVar("Model", Diffusion, HVAE)


class Models(ABC, Generic[Settings, Model]):
    """Train, draw, measure and report; what differs between kinds of models is abstract.

    Args:
        settings: what to compare.
    """

    kind: str
    command: str
    parts: Sequence[str] = MODEL_PARTS
    brief: bool = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.jobs = [Job(arm, seed) for seed in settings.seeds for arm in settings.arms]
        self._ruler: Ruler | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return distributed.resolve_device(self.settings.machine.device)

    @abstractmethod
    def load_images(self, options: Options) -> GenerationData:
        """Read the images."""

    @abstractmethod
    def check_arms(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""

    @abstractmethod
    def train(self, job: Job, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""

    @abstractmethod
    def open(self, folder: Path) -> tuple[Model, Trained]:
        """Read a trained model."""

    @abstractmethod
    def draw(self, model: Model, data: GenerationData, num: int, seed: int) -> Samples:
        """Draw samples."""

    @abstractmethod
    def film(self, model: Model, data: GenerationData, num: int, seed: int) -> Process:
        """Return how the first of these samples come into being."""

    @abstractmethod
    def measure(self, job: Job, model: Model, data: GenerationData) -> dict[str, Any]:
        """Measure all but the samples; "generation" tells how they are drawn."""

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if the machine is not as the settings want it."""
        distributed.resolve_device(self.settings.machine.device)
        if distributed.world_size() > 1:
            raise ValueError("generate runs in one process, and torchrun started several")
        return self.load_images(options)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images, or a file of weights is not there."""
        self.check_arms(data)
        check_features(self.settings.evaluation.features)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        arms = ", ".join(dict.fromkeys(job.row for job in self.jobs))
        return (
            f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
            f"{data.channels}x{data.image_size}x{data.image_size}; {arms}; "
            f"{told_steps(self.settings.training.steps)} each, on {self.device}"
        )

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train a model, draw from it, and return what was measured."""
        ruler = self._make_ruler(data, at)
        folder = model_folder(at.path, *job)
        self.train(job, data, folder, at.recipe)
        self._draw_missing(job, data, at)
        model, trained = self.open(folder)
        found = self.measure(job, model, data)
        samples = Samples.load(model_samples_file(at.path, *job))
        drawn = evaluate_generation(samples.images[:, None], ruler.reference, ruler.extractor)
        return {
            "arm": job.row,
            "seed": job.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": trained.steps,
            "training_seconds": trained.seconds,
            **found,
            "generation": {**drawn, "seconds": samples.seconds, **found["generation"]},
        }

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text.

        Samples that were deleted are drawn anew; they have the same seed.

        Raises:
            FileNotFoundError: a model is gone, too.
        """
        if not reference_file(at.path).exists():
            self._make_ruler(data, at)
        for job in self.jobs:
            try:
                if self._draw_missing(job, data, at):
                    print(f"samples of {job.name} were not there and are drawn anew")
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}; delete {at.results_file(job.name)} and resume, so that all of this "
                    "arm is made anew"
                ) from error
        return self.write(list(results.values()), read_result(reference_file(at.path)), data, at)

    @abstractmethod
    def write(
        self,
        results: Sequence[dict[str, Any]],
        real: dict[str, Any],
        data: GenerationData,
        at: RunFolder,
    ) -> str:
        """Write the report and return it as text."""

    def drawn(self, folder: Path) -> dict[str, Drawn]:
        """Read what each arm drew with the first seed."""
        return {arm: load_drawn(folder, arm, self.settings.seeds[0]) for arm in self.settings.arms}

    def logs(self, folder: Path) -> dict[str, list[Path]]:
        """Return the folders of each arm's trainings."""
        settings = self.settings
        return {
            arm: [model_folder(folder, arm, seed) for seed in settings.seeds]
            for arm in settings.arms
        }

    def _make_ruler(self, data: GenerationData, at: RunFolder) -> Ruler:
        if self._ruler is None:
            features, machine = self.settings.evaluation.features, self.settings.machine
            self._ruler = make_ruler(data, features, at.path, device=machine.device)
        return self._ruler

    def _draw_missing(self, job: Job, data: GenerationData, at: RunFolder) -> bool:
        files = model_samples_file(at.path, *job), process_file(at.path, *job)
        missing = not all(file.exists() for file in files)
        if missing:
            model, _ = self.open(model_folder(at.path, *job))
            num, seed = self.settings.evaluation.num_samples, derive_seed(job.seed, "samples")
            self.draw(model, data, num, seed).save(files[0])
            self.film(model, data, num, seed).save(files[1])
        return missing


class DiffusionModels(Models[DiffusionSettings, Diffusion]):
    """Diffusion models of images and of their pseudo videos."""

    kind, command = GENERATE_DIFFUSION, "generate diffusion"

    def load_images(self, options: Options) -> GenerationData:
        """Read the images."""
        return load_diffusion_images(self.settings.one_model(*self.jobs[0]), options)

    def check_arms(self, data: GenerationData) -> None:
        """Raise if sizes, steps or weights don't fit."""
        for arm in self.settings.arms:
            check_model(self.settings.one_model(arm, seed=0), data)
        asked = self.settings.evaluation
        for name in ("likelihood_images", "frame_error_images"):
            if getattr(asked, name) > len(data.test):
                print(f"{name}={getattr(asked, name):,}: all {len(data.test):,} test images count")

    def train(self, job: Job, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""
        train_model(self.settings.one_model(*job), data, folder, recipe=recipe)

    def open(self, folder: Path) -> tuple[Diffusion, Trained]:
        """Read a trained model."""
        return open_diffusion(folder, device=self.device)

    def draw(self, model: Diffusion, data: GenerationData, num: int, seed: int) -> Samples:
        """Draw samples."""
        return draw_model(model, num, self.settings.sampling, seed=seed, device=self.device)

    def film(self, model: Diffusion, data: GenerationData, num: int, seed: int) -> Process:
        """Return how the first of these samples come into being."""
        return film_model(model, num, self.settings.sampling, seed=seed, device=self.device)

    def measure(self, job: Job, model: Diffusion, data: GenerationData) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        one, sampling = self.settings.one_model(*job), self.settings.sampling
        asked, device = self.settings.evaluation, self.device
        steps = sampling.sampling_steps or one.diffusion_steps
        likelihood, errors, evaluations = None, None, steps
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps)
            if asked.frame_error_images:
                errors = measure_frames(
                    model, arm_videos(one), data, asked, sampling, seed=job.seed, device=device
                )
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            seed = derive_seed(job.seed, "likelihood")
            likelihood = mean_bits_per_dim(model, images, seed=seed, device=device)
        counted = min(asked.likelihood_images, len(data.test))
        return {
            "frames": one.parsed_arm.frames,
            "corruption": one.parsed_arm.corruption,
            "context": one.context or None,
            "diffusion_steps": one.diffusion_steps,
            "bits_per_dim": likelihood,
            "num_likelihood": 0 if likelihood is None else counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": steps,
                "evaluations": evaluations,
            },
        }

    def write(
        self,
        results: Sequence[dict[str, Any]],
        real: dict[str, Any],
        data: GenerationData,
        at: RunFolder,
    ) -> str:
        """Write the report and return it as text."""
        settings, seed = self.settings, self.settings.seeds[0]
        one = {arm: settings.one_model(arm, seed) for arm in settings.arms}
        videos = {
            arm: Videos(arm_videos(own), own.context)
            for arm, own in one.items()
            if own.parsed_arm.is_video
        }
        return diffusion_report(
            results,
            real,
            settings=settings.to_dict(),
            data=image_facts(data),
            recipe=at.recipe,
            plots=lambda plots: draw_diffusion(
                plots,
                results,
                real,
                data,
                seed=seed,
                videos=videos,
                drawn=self.drawn(at.path),
                logs=self.logs(at.path),
            ),
        ).write(at.path)


class HvaeModels(Models[HvaeSettings, HVAE]):
    """Hierarchical VAEs whose encoder blurs, or is learned."""

    kind, command = GENERATE_HVAE, "generate hvae"

    def load_images(self, options: Options) -> GenerationData:
        """Read the images."""
        return load_hvae_images(self._one(self.jobs[0]), options)

    def check_arms(self, data: GenerationData) -> None:
        """Raise if sizes don't fit the images."""
        # Without memory for the weights.
        with torch.device("meta"):
            for arm in self.settings.arms:
                build_hvae(self.settings.one_model(arm, seed=0), data)

    def train(self, job: Job, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""
        train_hvae(self._one(job), data, folder, recipe=recipe)

    def open(self, folder: Path) -> tuple[HVAE, Trained]:
        """Read a trained model."""
        return open_hvae(folder, device=self.device)

    def draw(self, model: HVAE, data: GenerationData, num: int, seed: int) -> Samples:
        """Draw samples."""
        return draw_hvae(model, data, num, seed=seed, device=self.device)

    def film(self, model: HVAE, data: GenerationData, num: int, seed: int) -> Process:
        """Return the levels of the first of these samples."""
        return film_hvae(model, data, num, seed=seed, device=self.device)

    def measure(self, job: Job, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound."""
        levels, num = model.config.num_levels, self.settings.evaluation.bound_images
        seed = derive_seed(job.seed, "bound")
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            **measure_hvae(model, data, num, seed=seed, device=self.device),
            "generation": {
                "sampler": "ancestral",
                "sampling_steps": levels,
                "evaluations": levels,
            },
        }

    def write(
        self,
        results: Sequence[dict[str, Any]],
        real: dict[str, Any],
        data: GenerationData,
        at: RunFolder,
    ) -> str:
        """Write the report and return it as text."""
        return hvae_report(
            results,
            real,
            settings=self.settings.to_dict(),
            data=image_facts(data),
            recipe=at.recipe,
            plots=lambda plots: generate_plots.draw_hvae(
                plots,
                results,
                real,
                data,
                seed=self.settings.seeds[0],
                drawn=self.drawn(at.path),
                logs=self.logs(at.path),
            ),
        ).write(at.path)

    def _one(self, job: Job) -> OneHvaeSettings:
        # The settings have checked the names.
        return self.settings.one_model(cast("HvaeArm", job.row), job.seed)
