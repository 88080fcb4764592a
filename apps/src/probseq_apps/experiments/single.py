"""`probseq generate tokenizer`, `prior`, `sample` and `evaluate`, each on its own."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import write_atomic
from probseq_apps.experiment import Experiment, Results, RunFolder
from probseq_apps.experiments import image_models, stages, tokens
from probseq_apps.options import Options
from probseq_apps.settings.generate import (
    GENERATE_EVALUATE,
    GENERATE_PRIOR,
    GENERATE_SAMPLE,
    GENERATE_TOKENIZER,
    PriorSettings,
    TokenizerSettings,
)
from pseudovideo.evaluation import reconstruction, reference_moments
from pseudovideo.plots import save_samples
from pseudovideo.priors import AutoregressivePrior

SAMPLES, METRICS = "samples.npz", "metrics.json"
Draw = Callable[[], stages.Samples]


class TokenizerStage(Experiment[GenerationData]):
    """Train one tokenizer in a folder of its own, which is that of the training loop."""

    kind, command, parts = GENERATE_TOKENIZER, "generate tokenizer", (stages.PRETRAINED,)

    def __init__(self, settings: TokenizerSettings) -> None:
        super().__init__(settings)
        self.config["train"] = settings.train_config().to_dict()

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if sizes, device or files are not as the settings want them."""
        data = stages.load_images(self.settings, options)
        tokens.check_tokenizer(self.settings, data)
        return data

    def describe(self, data: GenerationData) -> str:
        """Return a line about the images."""
        return stages.describe_images(data)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Train the tokenizer, from where it stopped, and return what came out."""
        trained = tokens.train_tokenizer(self.settings, data, at.path, recipe=at.recipe)
        grid = trained.tokenizer.grid
        return (
            f"{self.settings.data}, {self.settings.frames} frames: {grid.num_tokens} tokens of "
            f"{grid.bits:g} bits after {trained.steps:,} steps in {trained.seconds:.0f} s\n"
            f"tokenizer: {at.path}"
        )


class PriorStage(Experiment[tuple[tokens.TrainedTokenizer, GenerationData]]):
    """Train one prior over the tokens of a tokenizer, in a folder of its own."""

    kind, command, parts = GENERATE_PRIOR, "generate prior", (stages.PRETRAINED, tokens.TOKENS)

    def __init__(self, settings: PriorSettings) -> None:
        # The folder may be resumed from another working directory.
        super().__init__(replace(settings, tokenizer=str(Path(settings.tokenizer).resolve())))
        self.config["train"] = settings.train_config().to_dict()

    def load(self, options: Options) -> tuple[tokens.TrainedTokenizer, GenerationData]:
        """Read the tokenizer and its images."""
        trained = tokens.open_tokenizer(Path(self.settings.tokenizer))
        tokens.check_prior(self.settings, trained.tokenizer.grid)
        self.data_name = trained.settings.data
        return trained, stages.load_images(trained.settings, options)

    def describe(self, data: tuple[tokens.TrainedTokenizer, GenerationData]) -> str:
        """Return a line about the images."""
        return stages.describe_images(data[1])

    def report(
        self, data: tuple[tokens.TrainedTokenizer, GenerationData], results: Results, at: RunFolder
    ) -> str:
        """Train the prior, from where it stopped, and return what came out."""
        cache = tokens.make_tokens(at.path / tokens.TOKENS, *data)
        _, seconds = tokens.train_prior(self.settings, cache, at.path, recipe=at.recipe)
        steps = f"{self.settings.train_config().steps:,} steps in {seconds:.0f} s"
        return f"{self.settings.prior} prior after {steps}: {at.path}"


class Sample(Experiment[Draw]):
    """Draw images, and write array and pictures into a folder."""

    kind, command = GENERATE_SAMPLE, "generate sample"

    def load(self, options: Options) -> Draw:
        """Read what draws: prior and tokenizer, or a model; seeds are those of the run."""
        distributed.resolve_device(self.settings.device)
        return self._model(options) if self.settings.model else self._prior()

    def report(self, data: Draw, results: Results, at: RunFolder) -> str:
        """Draw, and return what came out."""
        samples = data()
        stages.save_kept(at.path / SAMPLES, samples)
        save_samples(samples.images, samples.videos, at.path / "plots", "samples")
        return f"{len(samples.images)} images in {float(samples.seconds):.1f} s: {at.path}"

    def _prior(self) -> Draw:
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        trained = tokens.open_tokenizer(Path(settings.tokenizer))
        (prior, _), tokenizer = tokens.open_prior(Path(settings.prior)), trained.tokenizer
        prior.check_tokenizer(tokenizer)
        self.data_name = trained.settings.data
        name = "autoregressive" if isinstance(prior, AutoregressivePrior) else "masked"
        seed, given = derive_seed(settings.seed, f"{name} samples"), (settings.num,)
        return lambda: tokens.draw_tokens(
            prior.to(device), tokenizer.to(device), *given, settings.sampling, seed=seed
        )

    def _model(self, options: Options) -> Draw:
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        folder = Path(settings.model)
        variant = image_models.variant_of(folder)
        if variant is None:
            raise FileNotFoundError(
                "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
                f"{folder} is none"
            )
        self.data_name, images = variant.settings.data, None
        if isinstance(variant, image_models.DiffusionVariant):
            settings.diffusion.check_steps(variant.steps)
            variant = variant.sampling(settings.diffusion)
        elif given := list(settings.diffusion.differs_from(type(settings.diffusion)())):
            raise ValueError(
                f"{given[0]} is for diffusion models, and {folder} holds an HVAE, whose levels are "
                "all taken: leave it out"
            )
        model, _ = image_models.open_model(variant, folder, device=device)
        if isinstance(variant, image_models.HvaeVariant):
            images = image_models.load_model_images(variant.settings, options)
        given, seed = variant.sample_options(images, model), derive_seed(settings.seed, "samples")
        return lambda: image_models.draw_samples(model, given, settings.num, seed=seed)


class Measured(NamedTuple):
    """What is measured, and the real images to compare with."""

    images: GenerationData
    samples: stages.Samples | None
    trained: tokens.TrainedTokenizer | None


class Evaluate(Experiment[Measured]):
    """Measure samples, a tokenizer's reconstructions, or both; print and store it as JSON.

    The classifier that gives features without Inception's weights is trained in `classifier/` of
    the folder, as in the folder of `generate run`, and kept there for the next time.
    """

    kind, command = GENERATE_EVALUATE, "generate evaluate"

    def load(self, options: Options) -> Measured:
        """Read samples, tokenizer and real images."""
        settings = self.settings
        distributed.resolve_device(settings.device)
        samples = trained = None
        if settings.samples is not None:
            samples = stages.load_kept(stages.Samples, Path(settings.samples))
        if settings.tokenizer is not None:
            trained = tokens.open_tokenizer(Path(settings.tokenizer))
        name, size = settings.data, settings.reading.image_size
        if trained is not None:
            name = name or trained.settings.data
            size = size or trained.tokenizer.config.image_size
        self.data_name = name or "digits"
        images = stages.load_images(settings, options, self.data_name, size)
        return Measured(images, samples, trained)

    def check(self, data: Measured) -> None:
        """Raise if samples, tokenizer and data don't go together."""
        images, samples, trained = data
        shapes: dict[str, tuple[int, ...]] = {}
        if samples is not None:
            shapes["samples"] = tuple(samples.images.shape[1:])
            if len(samples.images) < 2:
                raise ValueError(
                    f"samples must hold at least 2 images for a Fréchet distance, and "
                    f"{self.settings.samples} holds {len(samples.images)}: draw more"
                )
        if trained is not None:
            sizes = trained.tokenizer.config
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
        extractor = stages.make_extractor(images, settings.features, folder, **place)
        found: dict[str, Any] = {"data": images.name}
        if trained is not None:
            found["reconstruction"] = reconstruction(
                trained.tokenizer.to(device),
                images.test[: settings.num_images],
                extractor=extractor,
                device=device,
                **tokens.held_out_videos(trained.settings),
            )
        if samples is not None:
            reference = stages.Reference(extractor, reference_moments(extractor, images.train))
            found["generation"] = reference.measure(samples.images)
            found["real images"] = reference.measure(images.test)
        text = json.dumps(found, indent=2, allow_nan=False)
        write_atomic(at.path / METRICS, f"{text}\n")
        # The numbers alone are on standard output.
        print(f"metrics: {at.path / METRICS}", file=sys.stderr)
        return text
