"""`probseq generate sample` and `generate export`, from models that are trained."""

from collections.abc import Callable, Iterable
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
from probseq_apps.experiments.tokens import draw_videos, read_prior
from probseq_apps.options import Options
from probseq_apps.report.generate_plots import draw_samples
from probseq_apps.settings.common import saved_settings
from probseq_apps.settings.generate import GENERATE_SAMPLE, PRIOR, GenerateSettings
from probseq_apps.settings.models import DiffusionSampling, ExportSettings, SampleSettings
from pseudovideo.labels import check_guidance, class_numbers
from pseudovideo.plots import save_pngs
from pseudovideo.spec import TokenSampling

SAMPLES = "samples.npz"


# -- generate sample ------------------------------------------------------------------------------


class Draw(NamedTuple):
    """A source of samples, the name of its images, and the names of its classes."""

    make: Callable[[], common.Samples]
    data_name: str
    class_names: tuple[str, ...]


def load_source(settings: SampleSettings, options: Options) -> Draw:
    """Read what draws: a prior with its tokenizer, or a model; seeds are those of the run."""
    device, pictures = distributed.resolve_device(settings.device), Path(settings.png)
    if (
        settings.png
        and pictures.exists()
        and not (pictures.is_dir() and not any(pictures.iterdir()))
    ):
        raise ValueError(f"png must be a new or an empty folder, and {pictures} is neither")
    folder = common.model_folder(Path(settings.model))
    if prior := saved_settings(folder, PRIOR, GenerateSettings):
        return _prior_source(settings, folder, prior[1].data, device)
    return _model_source(settings, folder, device)


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


def _prior_source(settings: SampleSettings, folder: Path, data: str, device: torch.device) -> Draw:
    _refuse(settings.diffusion.differs_from(DiffusionSampling()), "diffusion models", folder)
    kind, prior, tokenizer = read_prior(folder)
    make = partial(
        draw_videos,
        *(kind, prior.to(device), tokenizer.to(device), settings.num, settings.sampling),
        seed=settings.seed,
        **_classes(settings, prior),
    )
    return Draw(make, data, prior.config.names)


def _model_source(settings: SampleSettings, folder: Path, device: torch.device) -> Draw:
    maker = image_models.find_maker(folder)
    _refuse(settings.sampling.differs_from(TokenSampling()), "priors", folder)
    model = image_models.read_image_model(folder).to(device)
    if isinstance(maker, image_models.DiffusionMaker):
        settings.diffusion.check_steps(maker.steps)
        sampled = replace(maker.settings, sampling=settings.diffusion)
        maker = image_models.DiffusionMaker(sampled)
    else:
        _refuse(settings.diffusion.differs_from(DiffusionSampling()), "diffusion models", folder)
    images = image_models.stored_images(folder)
    how = maker.sample_options(images, device) | _classes(settings, model)
    seed = derive_seed(settings.seed, "samples")
    make = partial(common.draw_timed, model, settings.num, seed=seed, **how)
    return Draw(make, maker.settings.data, model.config.names)


def _refuse(changed: Iterable[str], owners: str, folder: Path) -> None:
    """Raise if settings are changed that the model of a folder does not take."""
    for name in changed:
        raise ValueError(f"{name} is for {owners}, and {folder} holds another model: leave it out")


def _classes(settings: SampleSettings, model: Any) -> dict[str, Any]:
    """Return labels and guidance; raise if the model does not know them."""
    asked, num, guidance = settings.labels, settings.num, settings.guidance
    check_guidance(model.config, guidance)
    labels = class_numbers(model.config, asked).repeat(num)[:num] if asked else None
    return {"labels": labels, "guidance": guidance}


# -- generate export ------------------------------------------------------------------------------


def export(settings: ExportSettings) -> None:
    """Write a diffusion model as a pipeline of diffusers."""
    from pseudovideo.integrations.diffusers import PseudoVideoPipeline  # loads diffusers

    source, target = common.model_folder(Path(settings.model)), Path(settings.pipeline)
    maker = image_models.find_maker(source)
    if not isinstance(maker, image_models.DiffusionMaker):
        raise ValueError(f"model must be one of diffusion, and {source} holds an HVAE")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"pipeline must be a new or an empty folder, and {target} is neither")
    model = image_models.read_image_model(source)
    trained_on = settings.trained_on or maker.settings.data
    pipeline = PseudoVideoPipeline(model, trained_on=trained_on, license=settings.license)
    pipeline.save_pretrained(target)
    print(f"pipeline: {target}")
