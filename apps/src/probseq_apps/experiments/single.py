"""`probseq generate tokenizer`, `prior`, `sample` and `evaluate`, each on its own."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import write_atomic
from probseq_apps.experiment import Results, RunFolder
from probseq_apps.experiment_classes import Experiment
from probseq_apps.experiments import image_models, stages
from probseq_apps.experiments.features import check_features, make_reference
from probseq_apps.experiments.tokens import TOKENS, PriorPart, TokenizerPart
from probseq_apps.options import Options
from probseq_apps.settings.generate import (
    GENERATE_EVALUATE,
    GENERATE_PRIOR,
    GENERATE_SAMPLE,
    GENERATE_TOKENIZER,
    PriorSettings,
)
from probseq_apps.settings.models import DiffusionSampling, ExportSettings
from pseudovideo.evaluation import reconstruction
from pseudovideo.labels import check_guidance, class_numbers
from pseudovideo.plots import save_pngs, save_samples

SAMPLES, METRICS = "samples.npz", "metrics.json"


class Draw(NamedTuple):
    """What draws, and the names of its classes."""

    make: Callable[[], stages.Samples]
    class_names: tuple[str, ...]


class _Stage(Experiment[GenerationData]):
    """Train one part in a folder of its own, which is that of the training loop."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.config["train"] = settings.train_config().to_dict()

    def describe(self, data: GenerationData) -> str:
        """Return a line about the images."""
        return stages.describe_images(data)


class TokenizerStage(_Stage):
    """Train one tokenizer."""

    kind, command, parts = GENERATE_TOKENIZER, "generate tokenizer", (stages.PRETRAINED,)

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if sizes, device or files are not as the settings want them."""
        data = stages.load_images(self.settings, options)
        TokenizerPart(self.settings).check(data)
        return data

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Train the tokenizer, from where it stopped, and return what came out."""
        part, settings = TokenizerPart(self.settings), self.settings
        label = f"tokenizer {settings.frames}-frame-{settings.stem}"
        trained = part.train(data, at.path, recipe=at.recipe, label=label)
        grid = trained.model.grid
        return (
            f"{settings.data}, {settings.frames} frames: {grid.num_tokens} tokens of "
            f"{grid.bits:g} bits after {trained.steps:,} steps in {trained.seconds:.0f} s\n"
            f"tokenizer: {at.path}"
        )


class PriorStage(_Stage):
    """Train one prior over the tokens of a tokenizer."""

    kind, command, parts = GENERATE_PRIOR, "generate prior", (stages.PRETRAINED, TOKENS)

    def __init__(self, settings: PriorSettings) -> None:
        # The folder may be resumed from another working directory.
        super().__init__(replace(settings, tokenizer=str(Path(settings.tokenizer).resolve())))

    def load(self, options: Options) -> GenerationData:
        """Read the tokenizer and its images."""
        self._tokenizer = TokenizerPart.open(Path(self.settings.tokenizer))
        settings = self._tokenizer.part.settings
        self.data_name = settings.data
        data = stages.load_images(settings, options)
        counts = stages.told_classes(self.settings.classes, data)
        self._prior = PriorPart(self.settings, counts)
        self._prior.check(self._tokenizer.model.grid)
        if counts:
            self.config["classes"] = counts
        return data

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Train the prior, from where it stopped, and return what came out."""
        label = f"{self.settings.prior} prior"
        labels = stages.labels_of(self.settings.classes, data, "train")
        cache = self._tokenizer.part.tokens(self._tokenizer.model, data, at.path / TOKENS, labels)
        trained = self._prior.train(cache, at.path, recipe=at.recipe, label=label)
        return f"{label} after {trained.steps:,} steps in {trained.seconds:.0f} s: {at.path}"


class Sample(Experiment[Draw]):
    """Draw images, and write array and pictures into a folder."""

    kind, command = GENERATE_SAMPLE, "generate sample"

    def load(self, options: Options) -> Draw:
        """Read what draws: prior and tokenizer, or a model; seeds are those of the run."""
        device = distributed.resolve_device(self.settings.device)
        return self._model(options, device) if self.settings.model else self._prior(device)

    def report(self, data: Draw, results: Results, at: RunFolder) -> str:
        """Draw, and return what came out."""
        samples = data.make()
        stages.save_kept(samples, at.path / SAMPLES)
        own: Any = {"labels": samples.labels, "class_names": data.class_names}
        save_samples(samples.images, samples.videos, at.path / "plots", "samples", **own)
        if self.settings.png:
            save_pngs(samples.images, self.settings.png)
        return f"{len(samples.images)} images in {float(samples.seconds):.1f} s: {at.path}"

    def _prior(self, device: torch.device) -> Draw:
        settings = self.settings
        tokenizer = TokenizerPart.open(Path(settings.tokenizer))
        prior = PriorPart.open(Path(settings.prior))
        prior.model.check_tokenizer(tokenizer.model)
        self.data_name = tokenizer.part.settings.data
        given = (prior.model.to(device), tokenizer.model.to(device), settings.num)
        own: Any = {"seed": settings.seed, **self._classes(prior.model)}
        draw = partial(prior.part.draw, *given, settings.sampling, **own)
        return Draw(draw, prior.model.config.names)

    def _model(self, options: Options, device: torch.device) -> Draw:
        settings, folder, images = self.settings, Path(self.settings.model), None
        variant = _variant(folder)
        self.data_name = variant.settings.data
        if isinstance(variant, image_models.DiffusionVariant):
            settings.diffusion.check_steps(variant.steps)
            own = replace(variant.settings, sampling=settings.diffusion)
            variant = image_models.DiffusionVariant(own)
        elif given := list(settings.diffusion.differs_from(DiffusionSampling())):
            raise ValueError(
                f"{given[0]} is for diffusion models, and {folder} holds an HVAE, whose levels are "
                "all taken: leave it out"
            )
        model = variant.read(folder).model.to(device)
        if isinstance(variant, image_models.HvaeVariant):
            images = image_models.load_model_images(variant.settings, options)
            found = tuple(variant.classes(images))
            if found != model.config.names:
                raise ValueError(
                    f"{images.name} must have the classes that the model was trained on "
                    f"({', '.join(model.config.names)}), got {', '.join(found)}"
                )
        own, seed = variant.sample_options(images, device), derive_seed(settings.seed, "samples")
        own |= self._classes(model)
        return Draw(
            partial(stages.draw_timed, model, settings.num, seed=seed, **own), model.config.names
        )

    def _classes(self, model: Any) -> dict[str, Any]:
        """Return labels and guidance; raise if the model does not know them."""
        asked, num, guidance = self.settings.labels, self.settings.num, self.settings.guidance
        check_guidance(model.config, guidance)
        labels = class_numbers(model.config, asked).repeat(num)[:num] if asked else None
        return {"labels": labels, "guidance": guidance}


def export(settings: ExportSettings) -> None:
    """Write a diffusion model as a pipeline of diffusers.

    Raises:
        ValueError: the model is none of diffusion, or files are where the pipeline should be.
        FileNotFoundError: there is no trained model.
    """
    from pseudovideo.integrations.diffusers import PseudoVideoPipeline  # loads diffusers

    source, target = Path(settings.model), Path(settings.pipeline)
    variant = _variant(source)
    if not isinstance(variant, image_models.DiffusionVariant):
        raise ValueError(f"model must be one of diffusion, and {source} holds an HVAE")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"pipeline must be a new or an empty folder, and {target} is neither")
    told = {"trained_on": settings.trained_on or variant.settings.data, "license": settings.license}
    PseudoVideoPipeline(variant.read(source).model, **told).save_pretrained(target)
    print(f"pipeline: {target}")


def _variant(folder: Path) -> image_models.Variant:
    variant = image_models.variant_of(folder)
    if variant is None:
        raise FileNotFoundError(
            "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
            f"{folder} is none"
        )
    return variant


class Measured(NamedTuple):
    """What is measured, and the real images to compare with."""

    images: GenerationData
    samples: stages.Samples | None
    trained: stages.Trained | None


class Evaluate(Experiment[Measured]):
    """Measure samples, a tokenizer's reconstructions, or both; print and store it as JSON.

    The classifier that gives features without Inception's weights is trained in `classifier/` of
    the folder, as in the folder of `generate run`, and kept there for the next time.
    """

    kind, command = GENERATE_EVALUATE, "generate evaluate"

    def load(self, options: Options) -> Measured:
        """Read samples, tokenizer and real images."""
        settings, reading = self.settings, self.settings.reading
        distributed.resolve_device(settings.device)
        samples = trained = None
        if settings.samples is not None:
            samples = stages.load_kept(stages.Samples, Path(settings.samples))
        name, size = settings.data, reading.image_size
        if settings.tokenizer is not None:
            trained = TokenizerPart.open(Path(settings.tokenizer))
            name = name or trained.part.settings.data
            size = size or trained.model.config.image_size
        self.data_name = name or "digits"
        named = replace(settings, data=self.data_name, reading=replace(reading, image_size=size))
        return Measured(stages.load_images(named, options), samples, trained)

    def check(self, data: Measured) -> None:
        """Raise if samples, tokenizer and data don't go together."""
        images, samples, trained = data
        check_features(self.settings.features)
        shapes: dict[str, tuple[int, ...]] = {}
        if samples is not None:
            shapes["samples"] = tuple(samples.images.shape[1:])
            if len(samples.images) < 2:
                raise ValueError(
                    f"samples must hold at least 2 images for a Fréchet distance, and "
                    f"{self.settings.samples} holds {len(samples.images)}: draw more"
                )
        if trained is not None:
            sizes = trained.model.config
            shapes["tokenizer"] = (sizes.channels, sizes.image_size, sizes.image_size)
        expected = (images.channels, images.image_size, images.image_size)
        for name, shape in shapes.items():
            if shape != expected:
                raise ValueError(
                    f"{name} must have images of (channels, height, width)={expected} as "
                    f"{images.name}, got {shape}"
                )

    def report(self, data: Measured, results: Results, at: RunFolder) -> str:
        """Measure, and return it as JSON."""
        images, samples, trained = data
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        place: dict[str, Any] = {"seed": settings.seed, "device": settings.device}
        folder = at.path / stages.CLASSIFIER
        reference = make_reference(images, settings.features, folder, **place)
        found: dict[str, Any] = {"data": images.name}
        if trained is not None:
            shown, tokenizer = images.test[: settings.num_images], trained.model.to(device)
            given: Any = {"extractor": reference.extractor, "device": device}
            given |= trained.part.held_out
            found["reconstruction"] = reconstruction(tokenizer, shown, **given)
        if samples is not None:
            found["generation"] = reference.measure(samples.images)
            found["real images"] = reference.real(len(samples.images))
        text = json.dumps(found, indent=2, allow_nan=False)
        write_atomic(at.path / METRICS, f"{text}\n")
        # The numbers alone are on standard output.
        print(f"metrics: {at.path / METRICS}", file=sys.stderr)
        return text
