"""`probseq generate sample` and `probseq generate evaluate`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.engine import distributed
from probseq_apps.engine.files import RunExistsError, prepare_run_dir, sole_use
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.generate_draw import PLOTS, draw_samples_of
from probseq_apps.experiments.generate_evaluation import (
    evaluate_generation,
    evaluate_reconstruction,
    reference_moments,
)
from probseq_apps.experiments.generate_features import make_extractor
from probseq_apps.experiments.generate_files import CLASSIFIER, write_result
from probseq_apps.experiments.generate_model_sample import model_sampler
from probseq_apps.experiments.generate_prior import open_prior
from probseq_apps.experiments.generate_sample import Samples, draw_samples
from probseq_apps.experiments.generate_settings import (
    GENERATE_SAMPLE,
    EvaluateSettings,
    SampleSettings,
    sample_config,
)
from probseq_apps.experiments.generate_tokenizer import (
    TrainedTokenizer,
    open_tokenizer,
    video_config,
)
from probseq_apps.folder import check_folder, default_folder
from probseq_apps.options import Options
from pseudovideo.priors import AutoregressivePrior

SAMPLES, METRICS = "samples.npz", "metrics.json"


def sample_command(settings: SampleSettings, options: Options) -> Path:
    """Draw images, and write array and pictures into a folder.

    Args:
        settings: tokenizer and prior, or a model, and how to draw.
        options: files and running.

    Returns:
        The folder.

    Raises:
        ValueError: prior and tokenizer don't go together.
        OSError: a file cannot be read or written.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=GENERATE_SAMPLE)
    device = distributed.resolve_device(settings.device)
    if settings.model:
        data, draw = model_sampler(settings, options, device)
    else:
        data, draw = _prior_sampler(settings, device)
    folder = options.run_dir or default_folder(GENERATE_SAMPLE, data)
    config = sample_config(settings)
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)
    with sole_use(folder):
        samples = draw()
        samples.save(folder / SAMPLES)
        draw_samples_of(samples, folder / PLOTS, "samples")
    print(f"{len(samples.images)} images in {samples.seconds:.1f} s: {folder}")
    return folder


def _prior_sampler(
    settings: SampleSettings, device: torch.device
) -> tuple[str, Callable[[], Samples]]:
    """Name of the data that prior and tokenizer have learned, and what draws from them."""
    trained = open_tokenizer(Path(settings.tokenizer))
    prior = open_prior(Path(settings.prior)).prior
    prior.check_tokenizer(trained.tokenizer)
    name = "autoregressive" if isinstance(prior, AutoregressivePrior) else "masked"

    def draw() -> Samples:
        return draw_samples(
            prior.to(device),
            trained.tokenizer.to(device),
            settings.num,
            settings.sampling,
            # As the run draws that the prior lies in.
            seed=derive_seed(settings.seed, f"{name} samples"),
        )

    return trained.settings.data, draw


def evaluate_command(settings: EvaluateSettings, options: Options) -> dict[str, Any]:
    """Measure samples, a tokenizer's reconstructions, or both; print and store it as JSON.

    What is printed goes into `metrics.json` of the run folder, too. The classifier that gives
    features without Inception's weights is trained in `classifier/` of that folder, as in the
    folder of `generate run`, and kept there for the next time.

    Args:
        settings: what to measure.
        options: files and running.

    Returns:
        What is printed.

    Raises:
        ValueError: samples, tokenizer and data don't go together.
        OSError: a file cannot be read or written, or the folder has a `metrics.json` that is not to
            be overwritten.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        _check_new(options.run_dir / METRICS, options)
    device = distributed.resolve_device(settings.device)
    samples = None if settings.samples is None else Samples.load(Path(settings.samples))
    trained = None if settings.tokenizer is None else open_tokenizer(Path(settings.tokenizer))
    data = _real_images(settings, trained, options)
    if samples is not None:
        _check_shape("samples", samples.images.shape[1:], data)
        if len(samples.images) < 2:
            raise ValueError(
                f"samples must hold at least 2 images for a Fréchet distance, and "
                f"{settings.samples} holds {len(samples.images)}: draw more"
            )
    if trained is not None:
        sizes = trained.tokenizer.config
        _check_shape("tokenizer", (sizes.channels, sizes.image_size, sizes.image_size), data)
    folder = options.run_dir or default_folder("generate-evaluate", data.name)
    extractor = make_extractor(
        data,
        settings.features,
        folder / CLASSIFIER,
        seed=settings.seed,
        device=settings.device,
    )
    found: dict[str, Any] = {"data": data.name}
    if trained is not None:
        one, tokenizer, *_ = trained
        found["reconstruction"] = evaluate_reconstruction(
            tokenizer.to(device),
            data.test[: settings.num_images],
            video_config(one.videos, one.frames),
            extractor,
            seed=derive_seed(one.seed, "test videos"),
            device=device,
        )
    if samples is not None:
        reference = reference_moments(extractor, data.train)
        found["generation"] = evaluate_generation(samples.images[:, None], reference, extractor)
        found["real images"] = evaluate_generation(data.test[:, None], reference, extractor)
    print(json.dumps(found, indent=2, allow_nan=False))
    folder.mkdir(parents=True, exist_ok=True)
    write_result(folder / METRICS, found)
    print(f"metrics: {folder / METRICS}", file=sys.stderr)
    return found


def _check_new(file: Path, options: Options) -> None:
    """Refuse to replace what was measured before.

    Raises:
        RunExistsError: it is there, and nobody asked for that.
    """
    if file.exists() and not options.overwrite:
        raise RunExistsError(f"{file} is there already: choose another folder, or overwrite it")


def _real_images(
    settings: EvaluateSettings, trained: TrainedTokenizer | None, options: Options
) -> GenerationData:
    name, size = settings.data, settings.reading.image_size
    if trained is not None:
        name = name or trained.settings.data
        size = size or trained.tokenizer.config.image_size
    return load_generation_data(
        name or "digits", image_size=size, data_dir=options.data_dir, download=options.download
    )


def _check_shape(name: str, found: tuple[int, ...], data: GenerationData) -> None:
    """Refuse grey images where colour is expected, and other sizes.

    Raises:
        ValueError: the shapes differ.
    """
    expected = (data.channels, data.image_size, data.image_size)
    if tuple(found) != expected:
        raise ValueError(
            f"{name} must have images of (channels, height, width)={expected} as {data.name}, "
            f"got {tuple(found)}"
        )
