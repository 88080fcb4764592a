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
from probseq_apps.experiment import Results, RunFolder, Workflow
from probseq_apps.experiments import image_models, stages
from probseq_apps.experiments.features import check_features, make_reference
from probseq_apps.experiments.tokens import (
    TOKENS,
    PriorPart,
    TokenizerPart,
    TrainedTokenizer,
    open_prior,
    open_tokenizer,
)
from probseq_apps.options import Options
from probseq_apps.report.generate_plots import draw_samples
from probseq_apps.settings.generate import (
    GENERATE_EVALUATE,
    GENERATE_PRIOR,
    GENERATE_SAMPLE,
    GENERATE_TOKENIZER,
    OnImages,
    PriorSettings,
    TokenizerSettings,
)
from probseq_apps.settings.models import (
    DiffusionSampling,
    EvaluateSettings,
    ExportSettings,
    SampleSettings,
)
from pseudovideo.evaluation import reconstruction
from pseudovideo.labels import check_guidance, class_numbers
from pseudovideo.plots import save_pngs

SAMPLES, METRICS = "samples.npz", "metrics.json"


# -- generate tokenizer ---------------------------------------------------------------------------


def load_tokenizer_images(settings: TokenizerSettings, options: Options) -> GenerationData:
    """Read the images; raise if sizes, device or files are not as the settings want them."""
    data = stages.load_images(settings, options)
    TokenizerPart(settings).check(data)
    return data


def train_tokenizer(
    settings: TokenizerSettings, data: GenerationData, results: Results, at: RunFolder
) -> str:
    """Train the tokenizer, from where it stopped, and return what came out."""
    label = f"tokenizer {settings.frames}-frame-{settings.stem}"
    trained = TokenizerPart(settings).train(data, at.path, recipe=at.recipe, label=label)
    grid = trained.model.grid
    return (
        f"{settings.data}, {settings.frames} frames: {grid.num_tokens} tokens of "
        f"{grid.bits:g} bits after {trained.steps:,} steps in {trained.seconds:.0f} s\n"
        f"tokenizer: {at.path}"
    )


TOKENIZER_WORKFLOW = Workflow(
    kind=GENERATE_TOKENIZER,
    command="generate tokenizer",
    one_process="generate run trains it on several",
    folders=(stages.PRETRAINED,),
    load=load_tokenizer_images,
    config=lambda settings, _: {
        "settings": settings.to_dict(),
        "train": settings.train_config().to_dict(),
    },
    describe=lambda _, data: stages.describe_images(data),
    report=train_tokenizer,
)


# -- generate prior -------------------------------------------------------------------------------


class Tokenized(NamedTuple):
    """A tokenizer, its images, and the training images of each class if the prior learns them."""

    tokenizer: TrainedTokenizer
    images: GenerationData
    counts: dict[str, int]


def load_tokenizer(settings: PriorSettings, options: Options) -> Tokenized:
    """Read the tokenizer and its images; raise if the prior does not fit them."""
    tokenizer = open_tokenizer(Path(settings.tokenizer).resolve())
    images = stages.load_images(tokenizer.maker.settings, options)
    counts = stages.conditioning_classes(settings.classes, images)
    PriorPart(settings, counts).check(tokenizer.model.grid)
    return Tokenized(tokenizer, images, counts)


def prior_config(settings: PriorSettings, data: Tokenized) -> dict[str, Any]:
    """Return settings, those of the training loop, and the images of classes."""
    train = settings.train_config().to_dict()
    config = {"settings": _resolved(settings).to_dict(), "train": train}
    return config | ({"classes": data.counts} if data.counts else {})


def train_prior(settings: PriorSettings, data: Tokenized, results: Results, at: RunFolder) -> str:
    """Train the prior, from where it stopped, and return what came out."""
    settings, (tokenizer, images, counts) = _resolved(settings), data
    label, tokens = f"{settings.prior} prior", at.path / TOKENS
    labels = stages.labels_of(settings.classes, images, "train")
    cache = tokenizer.maker.tokens(tokenizer.model, images, tokens, labels)
    maker = PriorPart(settings, counts)
    trained = maker.train(cache, at.path, recipe=at.recipe, label=label)
    return f"{label} after {trained.steps:,} steps in {trained.seconds:.0f} s: {at.path}"


def _resolved(settings: PriorSettings) -> PriorSettings:
    """Return settings whose folder may be resumed from another working directory."""
    return replace(settings, tokenizer=str(Path(settings.tokenizer).resolve()))


PRIOR_WORKFLOW = Workflow(
    kind=GENERATE_PRIOR,
    command="generate prior",
    one_process="generate run trains it on several",
    folders=(stages.PRETRAINED, TOKENS),
    load=load_tokenizer,
    data_name=lambda _, data: data.tokenizer.maker.settings.data,
    config=prior_config,
    describe=lambda _, data: stages.describe_images(data.images),
    report=train_prior,
)


# -- generate sample ------------------------------------------------------------------------------


class Draw(NamedTuple):
    """What draws, the name of its images, and the names of its classes."""

    make: Callable[[], stages.Samples]
    data_name: str
    class_names: tuple[str, ...]


def load_source(settings: SampleSettings, options: Options) -> Draw:
    """Read what draws: prior and tokenizer, or a model; seeds are those of the run."""
    device = distributed.resolve_device(settings.device)
    if settings.model:
        return _model_source(settings, options, device)
    return _prior_source(settings, device)


def draw(settings: SampleSettings, source: Draw, results: Results, at: RunFolder) -> str:
    """Draw, write array and pictures into the folder, and return what came out."""
    samples = source.make()
    stages.save_drawn(samples, at.path / SAMPLES)
    draw_samples(samples, at.path / "plots", "samples", class_names=source.class_names)
    if settings.png:
        save_pngs(samples.images, settings.png)
    return f"{len(samples.images)} images in {float(samples.seconds):.1f} s: {at.path}"


SAMPLE_WORKFLOW = Workflow(
    kind=GENERATE_SAMPLE,
    command="generate sample",
    one_process="nothing is trained",
    load=load_source,
    data_name=lambda _, source: source.data_name,
    report=draw,
)


def _prior_source(settings: SampleSettings, device: torch.device) -> Draw:
    tokenizer = open_tokenizer(Path(settings.tokenizer))
    prior = open_prior(Path(settings.prior))
    prior.model.check_tokenizer(tokenizer.model)
    make = partial(
        prior.maker.draw,
        prior.model.to(device),
        tokenizer.model.to(device),
        settings.num,
        settings.sampling,
        seed=settings.seed,
        **_classes(settings, prior.model),
    )
    return Draw(make, tokenizer.maker.settings.data, prior.model.config.names)


def _model_source(settings: SampleSettings, options: Options, device: torch.device) -> Draw:
    folder, images = Path(settings.model), None
    variant = _variant(folder)
    if isinstance(variant, image_models.DiffusionVariant):
        settings.diffusion.check_steps(variant.steps)
        sampled = replace(variant.settings, sampling=settings.diffusion)
        variant = image_models.DiffusionVariant(sampled)
    elif changed := list(settings.diffusion.differs_from(DiffusionSampling())):
        raise ValueError(
            f"{changed[0]} is for diffusion models, and {folder} holds an HVAE, whose levels are "
            "all taken: leave it out"
        )
    model = image_models.read_variant(variant, folder).model.to(device)
    if isinstance(variant, image_models.HvaeVariant):
        images = stages.load_images(variant.settings, options)
        names = tuple(stages.conditioning_classes(variant.settings.classes, images))
        if names != model.config.names:
            raise ValueError(
                f"{images.name} must have the classes that the model was trained on "
                f"({', '.join(model.config.names)}), got {', '.join(names)}"
            )
    how = variant.sample_options(images, device) | _classes(settings, model)
    seed = derive_seed(settings.seed, "samples")
    make = partial(stages.draw_timed, model, settings.num, seed=seed, **how)
    return Draw(make, variant.settings.data, model.config.names)


def _classes(settings: SampleSettings, model: Any) -> dict[str, Any]:
    """Return labels and guidance; raise if the model does not know them."""
    asked, num, guidance = settings.labels, settings.num, settings.guidance
    check_guidance(model.config, guidance)
    labels = class_numbers(model.config, asked).repeat(num)[:num] if asked else None
    return {"labels": labels, "guidance": guidance}


# -- generate export ------------------------------------------------------------------------------


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
    model = image_models.read_variant(variant, source).model
    trained_on = settings.trained_on or variant.settings.data
    pipeline = PseudoVideoPipeline(model, trained_on=trained_on, license=settings.license)
    pipeline.save_pretrained(target)
    print(f"pipeline: {target}")


def _variant(folder: Path) -> image_models.Variant:
    variant = image_models.find_variant(folder)
    if variant is None:
        raise FileNotFoundError(
            "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
            f"{folder} is none"
        )
    return variant


# -- generate evaluate ----------------------------------------------------------------------------


class Evaluated(NamedTuple):
    """What is measured, and the real images to compare with."""

    images: GenerationData
    data_name: str
    samples: stages.Samples | None
    trained: TrainedTokenizer | None


def load_evaluated(settings: EvaluateSettings, options: Options) -> Evaluated:
    """Read samples, tokenizer and real images."""
    reading = settings.reading
    distributed.resolve_device(settings.device)
    samples = trained = None
    if settings.samples is not None:
        samples = stages.load_drawn(Path(settings.samples))
    name, size = settings.data, reading.image_size
    if settings.tokenizer is not None:
        trained = open_tokenizer(Path(settings.tokenizer))
        name = name or trained.maker.settings.data
        size = size or trained.model.config.image_size
    name = name or "digits"
    of_images = OnImages(data=name, reading=replace(reading, image_size=size))
    return Evaluated(stages.load_images(of_images, options), name, samples, trained)


def check_evaluated(settings: EvaluateSettings, data: Evaluated) -> None:
    """Raise if samples, tokenizer and data don't go together."""
    images, _, samples, trained = data
    check_features(settings.features)
    shapes: dict[str, tuple[int, ...]] = {}
    if samples is not None:
        shapes["samples"] = tuple(samples.images.shape[1:])
        if len(samples.images) < 2:
            raise ValueError(
                f"samples must hold at least 2 images for a Fréchet distance, and "
                f"{settings.samples} holds {len(samples.images)}: draw more"
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


def measure(settings: EvaluateSettings, data: Evaluated, results: Results, at: RunFolder) -> str:
    """Measure, store the numbers, and return them as JSON.

    The classifier that gives features without Inception's weights is trained in `classifier/` of
    the folder, as in the folder of `generate run`, and stays there for the next time.
    """
    images, _, samples, trained = data
    device, folder = distributed.resolve_device(settings.device), at.path / stages.CLASSIFIER
    place: dict[str, Any] = {"seed": settings.seed, "device": settings.device}
    reference = make_reference(images, settings.features, folder, **place)
    measured: dict[str, Any] = {"data": images.name}
    if trained is not None:
        test, tokenizer = images.test[: settings.num_images], trained.model.to(device)
        options: Any = {"extractor": reference.extractor, "device": device}
        options |= trained.maker.held_out
        measured["reconstruction"] = reconstruction(tokenizer, test, **options)
    if samples is not None:
        measured["generation"] = reference.measure(samples.images)
        measured["real images"] = reference.real(len(samples.images))
    text = json.dumps(measured, indent=2, allow_nan=False)
    write_atomic(at.path / METRICS, f"{text}\n")
    # The numbers alone are on standard output.
    print(f"metrics: {at.path / METRICS}", file=sys.stderr)
    return text


EVALUATE_WORKFLOW = Workflow(
    kind=GENERATE_EVALUATE,
    command="generate evaluate",
    one_process="nothing is trained",
    load=load_evaluated,
    data_name=lambda _, data: data.data_name,
    check=check_evaluated,
    report=measure,
)
