"""`probseq generate diffusion` and `probseq generate hvae`: a model for each variant and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import (
    CONFIG,
    FINISHED,
    check_manifest,
    prepare_run_dir,
    read_finished,
    write_json,
    write_manifest,
)
from probseq_apps.experiment import Job, Results
from probseq_apps.experiments.image_variants import (
    DiffusionVariant,
    HvaeVariant,
    Variant,
    generator_for,
)
from probseq_apps.experiments.reference import (
    CLASSIFIER,
    PRETRAINED,
    SAMPLES,
    ImageExperiment,
    Process,
    Samples,
    check_features,
    check_one_process,
    collect_samples,
    count_steps,
    describe_images,
    finished_run,
    load_images,
    lost,
    train,
)
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate import Generated, diffusion_report, hvae_report
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
from pseudovideo.pretrained import Pretrained, load_pretrained

MODELS, PROCESS = "models", "process"
# Levels above are white.
_THRESHOLD = 127


class Models(ImageExperiment):
    """Train, draw, measure and report a model for each arm and seed."""

    parts = (SAMPLES, PROCESS, MODELS, CLASSIFIER)

    def __init__(self, settings: Any, variant: type[Any]) -> None:
        self.settings = settings
        self._variants: dict[Job, Any] = {
            Job(arm, seed): variant(settings.one_model(arm, seed))
            for seed in settings.seeds
            for arm in settings.arms
        }
        self.jobs = list(self._variants)

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if the machine is not as the settings want it."""
        check_one_process(self.settings.machine.device)
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
        check_features(self.settings.evaluation.features)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        steps = count_steps(self.settings.training.steps)
        arms = ", ".join(self.settings.arms)
        return f"{describe_images(data)}; {arms}; {steps} each, on {self.device}"

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train a model, draw from it, and return what was measured."""
        variant, folder = self._variants[job], at.path / MODELS / job.name
        reference = self.reference(data, at)
        train_model(variant, data, folder, recipe=at.recipe)
        self._draw_missing(job, data, at)
        model, finished = open_model(variant, folder, device=self.device)
        samples = Samples.load(at.path / SAMPLES / f"{job.name}.npz")
        found = variant.measure(model, data)
        drawn = {**reference.measure(samples.images), "seconds": samples.seconds}
        return {
            "arm": job.row,
            "seed": job.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": finished["steps"],
            "training_seconds": finished["seconds"],
            **found,
            "generation": {**drawn, **found["generation"]},
        }

    def facts(
        self, data: GenerationData, results: Results, at: RunFolder
    ) -> tuple[Generated, dict[str, Any]]:
        """Return results, and what was drawn, anew where samples were deleted."""
        for job in self.jobs:
            try:
                if self._draw_missing(job, data, at):
                    log.say(f"samples of {job.name} were not there and are drawn anew")
            except FileNotFoundError as error:
                raise lost(error, job, at) from error
        settings, seed = self.settings, self.settings.seeds[0]
        drawn = {
            arm: Drawn(
                *Samples.load(at.path / SAMPLES / f"{arm}-seed{seed}.npz")[:2],
                *Process.load(at.path / PROCESS / f"{arm}-seed{seed}.npz"),
            )
            for arm in settings.arms
        }
        logs = {
            arm: [at.path / MODELS / f"{arm}-seed{seed}" for seed in settings.seeds]
            for arm in settings.arms
        }
        real = self.real(data, at)
        run = Generated(list(results.values()), real, settings.to_dict(), data, at.recipe)
        return run, {"drawn": drawn, "logs": logs}

    def _draw_missing(self, job: Job, data: GenerationData, at: RunFolder) -> bool:
        files = [at.path / part / f"{job.name}.npz" for part in (SAMPLES, PROCESS)]
        missing = not all(file.exists() for file in files)
        if missing:
            variant, num = self._variants[job], self.settings.evaluation.num_samples
            model, _ = open_model(variant, at.path / MODELS / job.name, device=self.device)
            seed = derive_seed(job.seed, "samples")
            draw_samples(variant, model, data, num, seed=seed, device=self.device).save(files[0])
            variant.film(model, data, num, generator_for(model, seed)).save(files[1])
        return missing


class Diffusion(Models):
    """Diffusion models of images and of their pseudo videos."""

    kind, command = GENERATE_DIFFUSION, "generate diffusion"

    def __init__(self, settings: DiffusionSettings) -> None:
        super().__init__(settings, DiffusionVariant)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        videos = {v.name: (v.videos, v.context) for v in self._variants.values() if v.arm.is_video}
        run, shown = self.facts(data, results, at)
        return diffusion_report(run, **shown, videos=videos).write(at.path)


class Hvae(Models):
    """Hierarchical VAEs whose encoder blurs, or is learned."""

    kind, command = GENERATE_HVAE, "generate hvae"

    def __init__(self, settings: HvaeSettings) -> None:
        super().__init__(settings, HvaeVariant)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        run, shown = self.facts(data, results, at)
        return hvae_report(run, **shown).write(at.path)


def load_model_images(
    settings: DiffusionSettings | HvaeSettings, options: Options
) -> GenerationData:
    """Return the images that a model learns from, black and white if so asked."""
    data = load_images(settings, options)
    if isinstance(settings, DiffusionSettings) or not settings.binarize:
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
    """Train a model, from where it stopped, and store it in `pretrained/`.

    Under bf16 the weights of convolutions lie with their channels last, where these are fastest.
    """
    settings = variant.settings
    identity = config_values(variant.kind, recipe, settings.to_dict())
    if not settings.training.steps:  # published weights as they are
        if read_finished(folder) is None:
            prepare_run_dir(folder, identity, resume=True)
            shutil.rmtree(folder / PRETRAINED, ignore_errors=True)
            variant.build(data)[1].save_pretrained(folder / PRETRAINED)
            write_manifest(folder / PRETRAINED)
            write_json(folder / FINISHED, {"steps": 0, "seconds": 0.0})
        return

    def build() -> tuple[nn.Module, Pretrained]:
        trained, model = variant.build(data)
        if settings.machine.precision == "bf16":
            # Typed for tensors alone, in torch's own words.
            trained.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return trained, model

    train(
        folder,
        build,
        variant.batch(data),
        settings.training.train_config(settings.machine, seed=variant.seed),
        loss=variant.loss,
        identity=identity,
        label=f"{variant.name}-seed{variant.seed}",
    )


def variant_of(folder: Path) -> DiffusionVariant | HvaeVariant | None:
    """Return the variant whose model a folder holds; None where it holds none."""
    if diffusion := saved_settings(folder, DIFFUSION_MODEL, DiffusionSettings):
        return DiffusionVariant(diffusion[1])
    hvae = saved_settings(folder, HVAE_MODEL, HvaeSettings)
    return None if hvae is None else HvaeVariant(hvae[1])


def open_model(
    variant: Variant, folder: Path, *, device: torch.device
) -> tuple[Any, Mapping[str, Any]]:
    """Read a trained model, and how its training ended."""
    finished = finished_run(folder, "model", "`generate diffusion` or `generate hvae`")
    check_manifest(folder / PRETRAINED)
    found: Any = load_pretrained(folder / PRETRAINED)
    size = variant.settings.reading.image_size or found.config.image_size
    kind, wanted = variant.config(size, found.config.channels)
    same = type(found) is kind
    differing: dict[str, Any] = cast("Any", wanted).differs_from(found.config) if same else {}
    if differing or not same:
        name, (value, other) = next(
            iter(differing.items()), ("class", (kind.__name__, type(found).__name__))
        )
        raise ValueError(
            f"{folder / PRETRAINED} must hold the model that {folder / CONFIG} tells of, with "
            f"{name}={value}, and holds another one with {name}={other}: copy its own there, or "
            "train it anew"
        )
    return found.to(device), finished


def draw_samples(
    variant: Variant,
    model: Any,
    data: GenerationData | None,
    num: int,
    *,
    seed: int,
    device: torch.device,
) -> Samples:
    """Draw samples from a model on a device."""
    return collect_samples(partial(variant.draw, model, data), num, device, seed=seed)
