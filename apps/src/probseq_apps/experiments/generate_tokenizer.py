"""Tokenizers of `probseq generate`: what they are built of, their training, and their folders.

A tokenizer's folder is a run of `fit` whose `config.json` tells data, corruption and sizes, with
the trained tokenizer in `pretrained/`.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine import distributed
from probseq_apps.engine.files import prepare_run_dir, read_finished, sole_use
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.generate_arms import run_name
from probseq_apps.experiments.generate_groups import CorruptionSettings, LossSettings
from probseq_apps.experiments.generate_settings import (
    GENERATE_TOKENIZER,
    OneTokenizerSettings,
    saved_tokenizer,
)
from probseq_apps.experiments.saved import config_values
from probseq_apps.folder import check_folder, default_folder, tell_how_to_resume
from probseq_apps.options import Options
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.tokenizers import (
    Tokenizer,
    TokenizerConfig,
    build_tokenizer,
    load_tokenizer,
)
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective

PRETRAINED = "pretrained"


class TrainedTokenizer(NamedTuple):
    """A tokenizer and where it comes from.

    Attributes:
        settings: it was trained with.
        tokenizer: in eval mode, on the CPU.
        steps: optimizer steps of its training.
        seconds: that they took.
    """

    settings: OneTokenizerSettings
    tokenizer: Tokenizer
    steps: int
    seconds: float


def tokenizer_command(
    settings: OneTokenizerSettings, options: Options, *, recipe: str = "digits-small"
) -> Path:
    """Train one tokenizer in a folder of its own.

    Args:
        settings: data, sizes and training.
        options: files and running.
        recipe: name of the recipe that the settings came from.

    Returns:
        The folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=GENERATE_TOKENIZER)
    data = load_images(settings, options)
    check_tokenizer(settings, data)
    folder = options.run_dir or default_folder(GENERATE_TOKENIZER, settings.data)
    prepare_run_dir(
        folder,
        _identity(settings, recipe) | {"train": _training(settings)},
        resume=options.resume,
        overwrite=options.overwrite,
    )
    with sole_use(folder), tell_how_to_resume("generate tokenizer", folder, options):
        if options.overwrite:
            shutil.rmtree(folder / PRETRAINED, ignore_errors=True)
        trained = train_tokenizer(settings, data, folder, recipe=recipe)
    grid = trained.tokenizer.grid
    print(
        f"{settings.data}, {settings.frames} frames: {grid.num_tokens} tokens of {grid.bits:g} bits"
        f" after {trained.steps:,} steps in {trained.seconds:.0f} s\ntokenizer: {folder}"
    )
    return folder


def load_images(settings: OneTokenizerSettings, options: Options) -> GenerationData:
    """The images that a tokenizer learns from.

    Raises:
        DataError: they are missing, damaged, or of mixed sizes.
    """
    return load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )


def video_config(settings: CorruptionSettings, frames: int) -> PseudoVideoConfig:
    """Which videos are made of images."""
    return PseudoVideoConfig(
        num_frames=frames,
        kind=settings.corruption,
        blur_rate=settings.blur_rate,
        beta_min=settings.beta_min,
        beta_max=settings.beta_max,
    )


def tokenizer_config(settings: OneTokenizerSettings, data: GenerationData) -> TokenizerConfig:
    """Sizes of a tokenizer for the images of a data set.

    Raises:
        ValueError: the images cannot be cut into such patches.
    """
    sizes, image = settings.tokenizer, settings.frames == 1
    return TokenizerConfig(
        num_frames=settings.frames,
        image_size=data.image_size,
        channels=data.channels,
        patch_size=sizes.patch_size,
        temporal_patch=1 if image else 2,
        dim=sizes.dim,
        num_heads=sizes.num_heads,
        spatial_depth=2 * sizes.depth if image else sizes.depth,
        temporal_depth=0 if image else sizes.depth,
        codebook_size=sizes.codebook_size,
        code_dim=sizes.code_dim,
        stem=settings.stem,
        causal=sizes.causal,
        commitment=sizes.commitment,
        decay=sizes.codebook_decay,
    )


def check_tokenizer(settings: OneTokenizerSettings, data: GenerationData) -> None:
    """Refuse what would fail later, before anything is written: sizes, devices, missing weights.

    Raises:
        ValueError: the settings don't fit the images.
        OSError: the weights of LPIPS are not there.
    """
    distributed.resolve_device(settings.machine.device)
    if distributed.world_size() > 1:
        raise ValueError("generate runs in one process, and torchrun started several")
    # Without memory for the weights, and without their initialisation, which takes seconds.
    with torch.device("meta"):
        tokenizer = build_tokenizer(tokenizer_config(settings, data))
        config = objective_config(settings.loss)
        perceptual = torch.nn.Identity() if config.perceptual_weight else None
        TokenizerObjective(tokenizer, config, perceptual)
    pseudo_videos(to_unit(data.train[:1]), video_config(settings.videos, settings.frames))
    make_perceptual(settings.loss)


def objective_config(settings: LossSettings) -> ObjectiveConfig:
    """Terms of the loss."""
    return ObjectiveConfig(
        frame=settings.loss_frame,
        perceptual_weight=settings.perceptual_weight,
        adversarial_weight=settings.adversarial_weight,
        adversarial_start=settings.adversarial_start,
    )


def make_perceptual(settings: LossSettings) -> LPIPS | None:
    """LPIPS with the named weights; None where it has no weight.

    Raises:
        ValueError: it has a weight, and no file is named, or one that holds something else.
        FileNotFoundError: the file is not there.
    """
    if not settings.perceptual_weight:
        return None
    file = settings.lpips_weights
    if file is None:
        raise ValueError(
            f"perceptual_weight={settings.perceptual_weight} needs lpips_weights, got none: name "
            "the file of torchvision's VGG-16 weights, or set perceptual_weight to 0"
        )
    what = f"lpips_weights must be a file of torchvision's VGG-16 weights, got {file}"
    if not Path(file).is_file():
        raise FileNotFoundError(f"{what}, which is not there")
    try:
        return LPIPS(weights=file)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def make_objective(settings: OneTokenizerSettings, data: GenerationData) -> TokenizerObjective:
    """A new tokenizer with all that trains it; its weights depend on the seed alone."""
    perceptual = make_perceptual(settings.loss)
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        tokenizer = build_tokenizer(tokenizer_config(settings, data))
        return TokenizerObjective(tokenizer, objective_config(settings.loss), perceptual)


def train_tokenizer(
    settings: OneTokenizerSettings,
    data: GenerationData,
    folder: Path,
    *,
    recipe: str,
    label: str = "",
) -> TrainedTokenizer:
    """Train a tokenizer, from where it stopped, and store it.

    Args:
        settings: data, sizes and training.
        data: the images.
        folder: of its run.
        recipe: name of the recipe that the settings came from.
        label: what the progress bar calls the run.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    if read_finished(folder) is None or not (folder / PRETRAINED / "config.json").is_file():
        objective = make_objective(settings, data)
        videos = video_config(settings.videos, settings.frames)
        fit(
            objective,
            numbered(data.train),
            settings.training.train_config(settings.machine, seed=settings.seed),
            folder,
            loss=partial(tokenizer_loss, videos, derive_seed(settings.seed, "videos")),
            label=label or f"tokenizer {run_name(f'{settings.frames}-frame', settings.stem, 0)}",
            metadata=_identity(settings, recipe),
        )
        objective.tokenizer.save_pretrained(folder / PRETRAINED)
    return open_tokenizer(folder)


def numbered(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
    """Return images with their numbers, of which the noise of their videos is drawn."""
    return images, torch.arange(len(images))


def tokenizer_loss(
    videos: PseudoVideoConfig, seed: int, objective: nn.Module, batch: Batch, step: Step
) -> LossParts:
    """Return the objective of images and their numbers, on the videos made of them here.

    The videos' noise depends on the seed, the epoch and the image alone.
    """
    images, index = batch
    frames = pseudo_videos(to_unit(images), videos, seed=seed, epoch=step.epoch, index=index)
    return LossParts.of(objective(frames, step=step.number, generator=step.generator))


def open_tokenizer(folder: Path) -> TrainedTokenizer:
    """Read a trained tokenizer.

    Args:
        folder: of `generate tokenizer`, or in `tokenizers/` of `generate run`.

    Raises:
        FileNotFoundError: there is none, or its training isn't finished.
        ValueError: its files are damaged.
    """
    saved, finished = saved_tokenizer(folder), read_finished(folder)
    if saved is None:
        raise FileNotFoundError(
            f"tokenizer must be a folder of `generate tokenizer`, and {folder} holds none"
        )
    if finished is None:
        raise FileNotFoundError(
            f"tokenizer must be a trained one, and the training in {folder} is not finished: "
            "resume it"
        )
    tokenizer = load_tokenizer(folder / PRETRAINED)
    return TrainedTokenizer(saved[1], tokenizer, finished["steps"], finished["seconds"])


def _identity(settings: OneTokenizerSettings, recipe: str) -> dict[str, object]:
    """What defines the run beside the settings of the training loop."""
    return config_values(GENERATE_TOKENIZER, recipe, settings.to_dict())


def _training(settings: OneTokenizerSettings) -> dict[str, object]:
    return settings.training.train_config(settings.machine, seed=settings.seed).to_dict()
