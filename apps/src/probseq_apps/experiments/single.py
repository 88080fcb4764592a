"""`probseq generate sample` and `generate export`, from models that are trained."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.experiment import Results, RunFolder, Workflow
from probseq_apps.experiments import generate_common as common
from probseq_apps.experiments import image_models
from probseq_apps.experiments.tokens import open_prior, open_tokenizer
from probseq_apps.options import Options
from probseq_apps.report.generate_plots import draw_samples
from probseq_apps.settings.generate import GENERATE_SAMPLE
from probseq_apps.settings.models import DiffusionSampling, ExportSettings, SampleSettings
from pseudovideo.labels import check_guidance, class_numbers
from pseudovideo.plots import save_pngs

SAMPLES = "samples.npz"


# -- generate sample ------------------------------------------------------------------------------


class Draw(NamedTuple):
    """A source of samples, the name of its images, and the names of its classes."""

    make: Callable[[], common.Samples]
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
    common.save_samples(samples, at.path / SAMPLES)
    draw_samples(samples, at.path / "plots", "samples", class_names=source.class_names)
    if settings.png:
        save_pngs(samples.images, settings.png)
    return f"{len(samples.images)} images in {float(samples.seconds):.1f} s: {at.path}"


SAMPLE_WORKFLOW = Workflow(
    kind=GENERATE_SAMPLE,
    command="generate sample",
    single_process="nothing is trained",
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
    maker = _variant(folder)
    if isinstance(maker, image_models.DiffusionMaker):
        settings.diffusion.check_steps(maker.steps)
        sampled = replace(maker.settings, sampling=settings.diffusion)
        maker = image_models.DiffusionMaker(sampled)
    elif changed := list(settings.diffusion.differs_from(DiffusionSampling())):
        raise ValueError(
            f"{changed[0]} is for diffusion models, and {folder} holds an HVAE, whose levels are "
            "all taken: leave it out"
        )
    model = image_models.read_maker(maker, folder).model.to(device)
    if isinstance(maker, image_models.HvaeMaker):
        images = common.load_images(maker.settings, options)
        names = tuple(common.conditioning_classes(maker.settings.classes, images))
        if names != model.config.names:
            raise ValueError(
                f"{images.name} must have the classes that the model was trained on "
                f"({', '.join(model.config.names)}), got {', '.join(names)}"
            )
    how = maker.sample_options(images, device) | _classes(settings, model)
    seed = derive_seed(settings.seed, "samples")
    make = partial(common.draw_timed, model, settings.num, seed=seed, **how)
    return Draw(make, maker.settings.data, model.config.names)


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
    maker = _variant(source)
    if not isinstance(maker, image_models.DiffusionMaker):
        raise ValueError(f"model must be one of diffusion, and {source} holds an HVAE")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"pipeline must be a new or an empty folder, and {target} is neither")
    model = image_models.read_maker(maker, source).model
    trained_on = settings.trained_on or maker.settings.data
    pipeline = PseudoVideoPipeline(model, trained_on=trained_on, license=settings.license)
    pipeline.save_pretrained(target)
    print(f"pipeline: {target}")


def _variant(folder: Path) -> image_models.Maker:
    maker = image_models.find_maker(folder)
    if maker is None:
        raise FileNotFoundError(
            "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
            f"{folder} is none"
        )
    return maker
