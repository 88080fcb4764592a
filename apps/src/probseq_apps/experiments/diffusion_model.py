"""Models of `probseq generate diffusion`: what they are built of, their training, their folders."""

import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine.files import prepare_run_dir, read_finished, write_finished
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.diffusion_arms import model_name
from probseq_apps.experiments.diffusion_settings import (
    GENERATE_DIFFUSION_MODEL,
    OneDiffusionSettings,
    saved_diffusion_model,
)
from probseq_apps.experiments.generate_groups import CorruptionSettings
from probseq_apps.experiments.generate_models import (
    Sized,
    Trained,
    fit_model,
    open_model,
    unet_config,
)
from probseq_apps.experiments.generate_tokenizer import PRETRAINED, numbered, video_config
from probseq_apps.experiments.saved import config_values
from probseq_apps.options import Options
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion, ImageDiffusionConfig
from pseudovideo.diffusion.load import load_diffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.published import load_improved_ddpm
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.diffusion.video import VideoDiffusion, VideoDiffusionConfig

Diffusion = ImageDiffusion | VideoDiffusion


def load_diffusion_images(settings: OneDiffusionSettings, options: Options) -> GenerationData:
    """The images that a model learns from.

    Raises:
        DataError: they are missing, damaged, or of mixed sizes.
    """
    return load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )


def arm_videos(settings: OneDiffusionSettings) -> PseudoVideoConfig:
    """The pseudo videos of a model's arm."""
    arm, frames = settings.parsed_arm, settings.frames
    return video_config(
        CorruptionSettings(
            corruption=arm.corruption or "repeat",
            blur_rate=frames.blur_rate,
            beta_min=frames.beta_min,
            beta_max=frames.beta_max,
        ),
        arm.frames,
    )


def check_model(settings: OneDiffusionSettings, data: GenerationData) -> None:
    """Refuse what would fail later: sizes, images that are too small, weights that don't fit.

    Raises:
        ValueError: the settings don't fit the images.
        OSError: the file of weights is not there.
    """
    config = model_config(settings, data)
    if settings.init_weights is not None:
        _published(settings, config)
    # Without memory for the weights, and without their initialisation, which takes seconds.
    with torch.device("meta"):
        build_unet(config, in_channels=config.channels, out_channels=2 * config.channels)
    pseudo_videos(to_unit(data.train[:1]), arm_videos(settings))


def model_config(settings: OneDiffusionSettings, images: Sized) -> ImageDiffusionConfig:
    """Sizes and process of a model for images.

    Args:
        settings: of the model.
        images: a data set, or the sizes of a model of such images.

    Raises:
        ValueError: the settings don't fit the images, or don't go together.
    """
    values: dict[str, Any] = {
        **asdict(unet_config(settings.unet, images)),
        "num_steps": settings.diffusion_steps,
        "schedule": settings.process.schedule,
    }
    arm, frames = settings.parsed_arm, settings.frames
    if not arm.is_video:
        return ImageDiffusionConfig(**values)
    return VideoDiffusionConfig(
        **values,
        num_frames=arm.frames,
        context=settings.context,
        masks=frames.masks,
        one_way=frames.one_way,
    )


def build_model(settings: OneDiffusionSettings, data: GenerationData) -> Diffusion:
    """A new model; its weights are the published ones, or depend on the seed alone.

    Raises:
        ValueError: the settings don't fit the images, or the published weights don't fit them.
        OSError: the file of weights is not there.
    """
    config = model_config(settings, data)
    if settings.init_weights is not None:
        return _published(settings, config)
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        return _new(config)


def train_model(
    settings: OneDiffusionSettings, data: GenerationData, folder: Path, *, recipe: str
) -> None:
    """Train a model, from where it stopped, and store it.

    Args:
        settings: sizes and training.
        data: the images.
        folder: of its run.
        recipe: name of the recipe that the settings came from.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    identity = config_values(GENERATE_DIFFUSION_MODEL, recipe, settings.to_dict())
    if not settings.training.steps:
        _store_untrained(settings, data, folder, identity)
        return

    def make() -> tuple[DiffusionObjective, Diffusion]:
        model = build_model(settings, data)
        return DiffusionObjective(model, importance=settings.training.importance), model

    fit_model(
        folder,
        make,
        numbered(data.train),
        settings.training.train_config(settings.machine, seed=settings.seed),
        loss=partial(diffusion_loss, arm_videos(settings), derive_seed(settings.seed, "videos")),
        identity=identity,
        label=model_name(settings.arm, settings.seed),
    )


def diffusion_loss(
    videos: PseudoVideoConfig, seed: int, objective: nn.Module, batch: Batch, step: Step
) -> LossParts:
    """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
    images, index = batch
    frames = pseudo_videos(to_unit(images), videos, seed=seed, epoch=step.epoch, index=index)
    return LossParts.of(objective(frames, generator=step.generator))


def open_diffusion(folder: Path, *, device: torch.device) -> tuple[Diffusion, Trained]:
    """Read a trained model.

    Args:
        folder: in `models/` of `generate diffusion`.
        device: where it is wanted.

    Raises:
        FileNotFoundError: there is none, or its training isn't finished.
        ValueError: its files are damaged, or it is not the model that the folder's settings make.
    """
    saved = saved_diffusion_model(folder)
    if saved is None:
        raise FileNotFoundError(
            f"model must be a folder in models/ of `generate diffusion`, and {folder} is none"
        )
    settings = saved[1]

    def described(sizes: Sized) -> tuple[type[Diffusion], ImageDiffusionConfig]:
        kind = VideoDiffusion if settings.parsed_arm.is_video else ImageDiffusion
        return kind, model_config(settings, sizes)

    size = settings.reading.image_size
    return open_model(folder, load_diffusion, described, image_size=size, device=device)


def _new(config: ImageDiffusionConfig) -> Diffusion:
    if isinstance(config, VideoDiffusionConfig):
        return VideoDiffusion(config)
    return ImageDiffusion(config)


def _published(settings: OneDiffusionSettings, config: ImageDiffusionConfig) -> ImageDiffusion:
    try:
        return load_improved_ddpm(settings.init_weights or "", config)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"init_weights must be a file of published weights, and {settings.init_weights} is none"
        ) from error
    except ValueError as error:
        raise ValueError(f"init_weights must hold weights of this UNet: {error}") from error


def _store_untrained(
    settings: OneDiffusionSettings, data: GenerationData, folder: Path, identity: dict[str, object]
) -> None:
    """Published weights as they are, in the form of a finished run."""
    if read_finished(folder) is not None:
        return
    prepare_run_dir(folder, identity, resume=True)
    shutil.rmtree(folder / PRETRAINED, ignore_errors=True)
    build_model(settings, data).save_pretrained(folder / PRETRAINED)
    write_finished(folder, {"steps": 0, "seconds": 0.0})
