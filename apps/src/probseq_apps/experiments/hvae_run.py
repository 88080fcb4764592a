"""`probseq generate hvae`: HVAEs with either encoder, their samples and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.drawn import image_facts, load_drawn
from probseq_apps.experiments.generate_files import (
    model_folder,
    model_samples_file,
    process_file,
)
from probseq_apps.experiments.generate_groups import FeatureSettings, MachineSettings
from probseq_apps.experiments.generate_models import ModelJob, run_models, told_steps
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
    hvae_config,
)
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.report import generate_plots
from probseq_apps.report.generate import hvae_report
from probseq_apps.training.distributed import resolve_device
from probseq_apps.training.schedule import derive_seed


def generate_hvae(
    settings: HvaeSettings, options: RunOptions, *, recipe: str = "digits-hvae"
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
    return run_models(HvaeComparison(settings), settings.data, options, recipe)


@dataclass(frozen=True)
class HvaeComparison:
    """What `run_models` asks of HVAEs.

    Attributes:
        settings: what is compared.
    """

    settings: HvaeSettings
    kind: str = GENERATE_HVAE
    step: str = "hvae"

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
        return hvae_config(recipe, self.settings)

    def load(self, options: RunOptions) -> GenerationData:
        """The images."""
        return load_hvae_images(self._one(self.jobs[0]), options)

    def check(self, data: GenerationData) -> None:
        """Refuse sizes that don't fit the images.

        Raises:
            ValueError: names the setting.
        """
        # Without memory for the weights.
        with torch.device("meta"):
            for arm in self.settings.arms:
                build_hvae(self.settings.one_model(arm, seed=0), data)

    def train(self, job: ModelJob, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""
        train_hvae(self._one(job), data, model_folder(folder, *job), recipe=recipe)

    def draw(self, job: ModelJob, data: GenerationData, folder: Path) -> None:
        """Draw samples, and the levels of a few of them."""
        device = resolve_device(self.machine.device)
        hvae, _ = open_hvae(model_folder(folder, *job), device=device)
        num, seed = self.settings.evaluation.num_samples, derive_seed(job.seed, "samples")
        samples = draw_hvae(hvae, data, num, seed=seed, device=device)
        samples.save(model_samples_file(folder, *job))
        film = film_hvae(hvae, data, num, seed=seed, device=device)
        film.save(process_file(folder, *job))

    def measure(self, job: ModelJob, data: GenerationData, folder: Path) -> dict[str, Any]:
        """Training, sizes and the bound."""
        device = resolve_device(self.machine.device)
        hvae, trained = open_hvae(model_folder(folder, *job), device=device)
        levels = hvae.config.num_levels
        return {
            "arm": job.arm,
            "seed": job.seed,
            "levels": levels,
            "noise_std": hvae.config.noise_std,
            "parameters": sum(p.numel() for p in hvae.parameters()),
            "steps": trained.steps,
            "training_seconds": trained.seconds,
            **measure_hvae(
                hvae,
                data,
                self.settings.evaluation.bound_images,
                seed=derive_seed(job.seed, "bound"),
                device=device,
            ),
            "generation": {
                "sampler": "ancestral",
                "sampling_steps": levels,
                "evaluations": levels,
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
        return hvae_report(
            results,
            real,
            settings=settings.to_dict(),
            data=image_facts(data),
            recipe=recipe,
            plots=lambda plots: generate_plots.draw_hvae(
                plots,
                results,
                real,
                data,
                seed=seed,
                drawn={arm: load_drawn(folder, arm, seed) for arm in settings.arms},
                logs={
                    arm: [model_folder(folder, arm, s) for s in settings.seeds]
                    for arm in settings.arms
                },
            ),
        ).write(folder)

    def _one(self, job: ModelJob) -> OneHvaeSettings:
        # The settings have checked the names.
        return self.settings.one_model(cast("HvaeArm", job.arm), job.seed)
