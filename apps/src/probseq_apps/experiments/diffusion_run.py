"""`probseq generate diffusion`: diffusion models of all arms, their samples and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.diffusion_draw import draw_model, film_model
from probseq_apps.experiments.diffusion_measure import mean_bits_per_dim, measure_frames
from probseq_apps.experiments.diffusion_model import (
    arm_videos,
    check_model,
    load_diffusion_images,
    open_diffusion,
    train_model,
)
from probseq_apps.experiments.diffusion_settings import (
    GENERATE_DIFFUSION,
    DiffusionSettings,
    diffusion_config,
)
from probseq_apps.experiments.drawn import image_facts, load_drawn
from probseq_apps.experiments.generate_files import (
    model_folder,
    model_samples_file,
    process_file,
)
from probseq_apps.experiments.generate_groups import FeatureSettings, MachineSettings
from probseq_apps.experiments.generate_models import ModelJob, run_models, told_steps
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.report.generate import diffusion_report
from probseq_apps.report.generate_plots import Videos, draw_diffusion
from probseq_apps.training.distributed import resolve_device
from probseq_apps.training.schedule import derive_seed
from pseudovideo.diffusion.video import VideoDiffusion


def generate_diffusion(
    settings: DiffusionSettings, options: RunOptions, *, recipe: str = "digits-diffusion"
) -> Path:
    """Run the comparison and write its report.

    Everything that can be refused is refused before anything is written.

    Args:
        settings: what to compare.
        options: files and running.
        recipe: name of the recipe that the settings came from, for the report.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        NonFiniteLossError: a loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    return run_models(DiffusionComparison(settings), settings.data, options, recipe)


@dataclass(frozen=True)
class DiffusionComparison:
    """What `run_models` asks of diffusion models.

    Attributes:
        settings: what is compared.
    """

    settings: DiffusionSettings
    kind: str = GENERATE_DIFFUSION
    step: str = "diffusion"

    @property
    def jobs(self) -> Sequence[ModelJob]:
        """All arms with all seeds."""
        return [ModelJob(arm, seed) for seed in self.settings.seeds for arm in self.settings.arms]

    @property
    def machine(self) -> MachineSettings:
        """Where it runs."""
        return self.settings.machine

    @property
    def features(self) -> FeatureSettings:
        """What distances are measured in."""
        return self.settings.evaluation.features

    @property
    def length(self) -> str:
        """How long each model is trained, in words."""
        return told_steps(self.settings.training.steps)

    def config(self, recipe: str) -> dict[str, object]:
        """What `config.json` holds."""
        return diffusion_config(recipe, self.settings)

    def load(self, options: RunOptions) -> GenerationData:
        """The images."""
        return load_diffusion_images(self.settings.one_model(*self.jobs[0]), options)

    def check(self, data: GenerationData) -> None:
        """Refuse sizes, steps and weights that don't fit.

        Raises:
            ValueError: names the setting.
            OSError: a file of weights is not there.
        """
        for arm in self.settings.arms:
            check_model(self.settings.one_model(arm, seed=0), data)
        asked = self.settings.evaluation
        for name in ("likelihood_images", "frame_error_images"):
            if getattr(asked, name) > len(data.test):
                print(f"{name}={getattr(asked, name):,}: all {len(data.test):,} test images count")

    def train(self, job: ModelJob, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""
        one = self.settings.one_model(*job)
        train_model(one, data, model_folder(folder, *job), recipe=recipe)

    def draw(self, job: ModelJob, data: GenerationData, folder: Path) -> None:
        """Draw samples, and how a few of them come into being."""
        device = resolve_device(self.machine.device)
        model, _ = open_diffusion(model_folder(folder, *job), device=device)
        num, seed = self.settings.evaluation.num_samples, derive_seed(job.seed, "samples")
        samples = draw_model(model, num, self.settings.sampling, seed=seed, device=device)
        samples.save(model_samples_file(folder, *job))
        film = film_model(model, num, self.settings.sampling, seed=seed, device=device)
        film.save(process_file(folder, *job))

    def measure(self, job: ModelJob, data: GenerationData, folder: Path) -> dict[str, Any]:
        """Training, sizes, likelihood and errors of frames."""
        device = resolve_device(self.machine.device)
        model, trained = open_diffusion(model_folder(folder, *job), device=device)
        one, sampling = self.settings.one_model(*job), self.settings.sampling
        asked = self.settings.evaluation
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
            "arm": job.arm,
            "seed": job.seed,
            "frames": one.parsed_arm.frames,
            "corruption": one.parsed_arm.corruption,
            "context": one.context or None,
            "diffusion_steps": one.diffusion_steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": trained.steps,
            "training_seconds": trained.seconds,
            "bits_per_dim": likelihood,
            "num_likelihood": 0 if likelihood is None else counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": steps,
                "evaluations": evaluations,
            },
        }

    def report(
        self,
        folder: Path,
        results: Sequence[Mapping[str, Any]],
        real: Mapping[str, Any],
        data: GenerationData,
        recipe: str,
    ) -> str:
        """Write the report; gives it as text."""
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
            recipe=recipe,
            plots=lambda plots: draw_diffusion(
                plots,
                results,
                real,
                data,
                seed=seed,
                videos=videos,
                drawn={arm: load_drawn(folder, arm, seed) for arm in settings.arms},
                logs={
                    arm: [model_folder(folder, arm, s) for s in settings.seeds]
                    for arm in settings.arms
                },
            ),
        ).write(folder)
