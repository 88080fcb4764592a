"""`probseq generate sample` and `probseq generate evaluate`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import write_atomic
from probseq_apps.experiment import Experiment, Results
from probseq_apps.experiments.image_models import (
    draw_samples,
    load_model_images,
    open_model,
    variant_of,
)
from probseq_apps.experiments.image_variants import DiffusionVariant
from probseq_apps.experiments.reference import CLASSIFIER, Samples, make_extractor
from probseq_apps.experiments.token_models import (
    TrainedTokenizer,
    draw_tokens,
    open_prior,
    open_tokenizer,
    video_config,
)
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate_plots import draw_grids
from probseq_apps.settings.common import unlike_defaults
from probseq_apps.settings.generate import GENERATE_EVALUATE, GENERATE_SAMPLE
from probseq_apps.settings.models import EvaluateSettings, SampleSettings
from pseudovideo.evaluation import generation, reconstruction, reference_moments
from pseudovideo.priors import AutoregressivePrior

SAMPLES, METRICS = "samples.npz", "metrics.json"
Draw = Callable[[], Samples]


class Sample(Experiment[Draw]):
    """Draw images, and write array and pictures into a folder."""

    kind, command = GENERATE_SAMPLE, "generate sample"

    def __init__(self, settings: SampleSettings) -> None:
        self.settings = settings
        self._data = ""

    @property
    def data_name(self) -> str:
        """Of the real images."""
        return self._data

    def load(self, options: Options) -> Draw:
        """Read what draws: prior and tokenizer, or a model."""
        distributed.resolve_device(self.settings.device)
        return self._model(options) if self.settings.model else self._prior()

    def report(self, data: Draw, results: Results, at: RunFolder) -> str:
        """Draw, and return what came out."""
        samples = data()
        samples.save(at.path / SAMPLES)
        draw_grids(samples.images, samples.videos, at.path / "plots", "samples")
        return f"{len(samples.images)} images in {samples.seconds:.1f} s: {at.path}"

    def _prior(self) -> Draw:
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        trained = open_tokenizer(Path(settings.tokenizer))
        prior = open_prior(Path(settings.prior)).prior
        prior.check_tokenizer(trained.tokenizer)
        self._data = trained.settings.data
        name = "autoregressive" if isinstance(prior, AutoregressivePrior) else "masked"
        return lambda: draw_tokens(
            prior.to(device),
            trained.tokenizer.to(device),
            settings.num,
            settings.sampling,
            # As the run draws that the prior lies in.
            seed=derive_seed(settings.seed, f"{name} samples"),
        )

    def _model(self, options: Options) -> Draw:
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        folder = Path(settings.model)
        variant = variant_of(folder)
        if variant is None:
            raise FileNotFoundError(
                "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
                f"{folder} is none"
            )
        images, self._data = None, variant.settings.data
        if isinstance(variant, DiffusionVariant):
            settings.diffusion.check_steps(variant.settings.steps_of(variant.arm))
            variant = variant.sampling(settings.diffusion)
        else:
            if given := unlike_defaults(settings.diffusion):
                raise ValueError(
                    f"{given[0]} is for diffusion models, and {folder} holds an HVAE, whose levels "
                    "are all taken: leave it out"
                )
        model, _ = open_model(variant, folder, device=device)
        if not isinstance(variant, DiffusionVariant):
            images = load_model_images(variant.settings, options)
        # As the run draws that the model lies in.
        seed = derive_seed(settings.seed, "samples")
        return lambda: draw_samples(variant, model, images, settings.num, seed=seed, device=device)


class Measured(NamedTuple):
    """What is measured, and the real images to compare with."""

    images: GenerationData
    samples: Samples | None
    trained: TrainedTokenizer | None


class Evaluate(Experiment[Measured]):
    """Measure samples, a tokenizer's reconstructions, or both; print and store it as JSON.

    The classifier that gives features without Inception's weights is trained in `classifier/` of
    the folder, as in the folder of `generate run`, and kept there for the next time.
    """

    kind, command = GENERATE_EVALUATE, "generate evaluate"

    def __init__(self, settings: EvaluateSettings) -> None:
        self.settings = settings
        self._data = ""

    @property
    def data_name(self) -> str:
        """Of the real images."""
        return self._data

    def load(self, options: Options) -> Measured:
        """Read samples, tokenizer and real images."""
        settings = self.settings
        distributed.resolve_device(settings.device)
        samples = None if settings.samples is None else Samples.load(Path(settings.samples))
        trained = None if settings.tokenizer is None else open_tokenizer(Path(settings.tokenizer))
        name, size = settings.data, settings.reading.image_size
        if trained is not None:
            name = name or trained.settings.data
            size = size or trained.tokenizer.config.image_size
        self._data = name or "digits"
        data = load_generation_data(
            self._data,
            image_size=size,
            data_dir=options.data_dir,
            download=options.download,
        )
        return Measured(data, samples, trained)

    def check(self, data: Measured) -> None:
        """Raise if samples, tokenizer and data don't go together."""
        images, samples, trained = data
        if samples is not None:
            _check_shape("samples", samples.images.shape[1:], images)
            if len(samples.images) < 2:
                raise ValueError(
                    f"samples must hold at least 2 images for a Fréchet distance, and "
                    f"{self.settings.samples} holds {len(samples.images)}: draw more"
                )
        if trained is not None:
            sizes = trained.tokenizer.config
            _check_shape("tokenizer", (sizes.channels, sizes.image_size, sizes.image_size), images)

    def report(self, data: Measured, results: Results, at: RunFolder) -> str:
        """Measure, and return it as JSON."""
        images, samples, trained = data
        settings, device = self.settings, distributed.resolve_device(self.settings.device)
        extractor = make_extractor(
            images,
            settings.features,
            at.path / CLASSIFIER,
            seed=settings.seed,
            device=settings.device,
        )
        found: dict[str, Any] = {"data": images.name}
        if trained is not None:
            one, tokenizer, *_ = trained
            found["reconstruction"] = reconstruction(
                tokenizer.to(device),
                images.test[: settings.num_images],
                video_config(one.videos, one.frames),
                extractor,
                seed=derive_seed(one.seed, "test videos"),
                device=device,
            )
        if samples is not None:
            moments = reference_moments(extractor, images.train)
            found["generation"] = generation(samples.images, moments, extractor)
            found["real images"] = generation(images.test, moments, extractor)
        text = json.dumps(found, indent=2, allow_nan=False)
        write_atomic(at.path / METRICS, f"{text}\n")
        # The numbers alone are on standard output.
        print(f"metrics: {at.path / METRICS}", file=sys.stderr)
        return text


def _check_shape(name: str, found: tuple[int, ...], data: GenerationData) -> None:
    """Raise if images are grey where colour is expected, or of another size."""
    expected = (data.channels, data.image_size, data.image_size)
    if tuple(found) != expected:
        raise ValueError(
            f"{name} must have images of (channels, height, width)={expected} as {data.name}, "
            f"got {tuple(found)}"
        )
