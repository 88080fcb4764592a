"""Pictures of `probseq generate`: which are drawn, and of what."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine.distributed import resolve_device
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.generate_arms import Arm, prior_name
from probseq_apps.experiments.generate_files import (
    prior_folder,
    result_file,
    samples_file,
    tokenizer_folder,
)
from probseq_apps.experiments.generate_groups import StemName
from probseq_apps.experiments.generate_prior import open_prior
from probseq_apps.experiments.generate_prior_groups import PriorName
from probseq_apps.experiments.generate_sample import Samples, draw_samples
from probseq_apps.experiments.generate_settings import GenerateSettings
from probseq_apps.experiments.generate_tokenizer import open_tokenizer, video_config
from probseq_apps.report.curves import save_training_curves
from probseq_apps.report.generate_plots import save_summary
from probseq_apps.report.images import (
    save_pseudo_videos,
    save_reconstructions,
    save_sample_grid,
    save_theorem,
)
from probseq_apps.report.results import Result
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.plots import frame_captions, save_gif

PLOTS = "plots"
# Images of a strip, videos below each other, samples of a grid and of a film.
_STRIP, _VIDEOS, _GRID, _FILM = 10, 4, 64, 16


def draw_run(
    settings: GenerateSettings,
    data: GenerationData,
    folder: Path,
    results: Sequence[Result],
    floors: Sequence[Result],
    real: Result,
) -> list[Path]:
    """Draw what a run made; of several seeds the first.

    Args:
        settings: what was compared.
        data: the images.
        folder: of the experiment.
        results: of all arms, stems and seeds.
        floors: of patch k-means.
        real: of the test images as if they were samples.

    Returns:
        The files, in `plots/`.
    """
    plots = folder / PLOTS
    drawn = [save_summary(results, plots / "summary.png", floors=floors, real=real)]
    drawn += _draw_videos(settings, data, plots)
    drawn += _draw_reconstructions(settings, data, folder)
    drawn += _draw_samples(settings, folder)
    drawn += _draw_curves(settings, folder)
    return drawn


def restore_samples(settings: GenerateSettings, folder: Path) -> None:
    """Draw samples anew that `draw_run` needs and that were deleted; they have the same seed.

    Args:
        settings: what was compared.
        folder: of the experiment.

    Raises:
        FileNotFoundError: their tokenizer or prior is gone, too.
        ValueError: the files of one of them are damaged.
    """
    device = resolve_device(settings.machine.device)
    seed = settings.seeds[0]
    for prior, arm, stem in _priors(settings):
        file = samples_file(folder, prior, arm.name, stem, seed)
        if file.exists():
            continue
        name = prior_name(prior, arm.name, stem, seed)
        print(f"samples of {name} are not there and are drawn anew", flush=True)
        try:
            tokenizer = open_tokenizer(tokenizer_folder(folder, arm.name, stem, seed)).tokenizer
            model = open_prior(prior_folder(folder, prior, arm.name, stem, seed)).prior
        except FileNotFoundError as error:
            result = result_file(folder, arm.name, stem, seed)
            raise FileNotFoundError(
                f"{error}; delete {result} and resume, so that all of this arm is made anew"
            ) from error
        draw_samples(
            model.to(device),
            tokenizer.to(device),
            settings.evaluation.num_samples,
            settings.sampling,
            seed=derive_seed(seed, f"{prior} samples"),
        ).save(file)


def _priors(settings: GenerateSettings) -> Iterator[tuple[PriorName, Arm, StemName]]:
    """All priors with arm and stem of their tokenizers."""
    for prior in settings.priors.prior:
        for stem in settings.stem:
            for arm in settings.arms:
                if settings.has_priors(arm, stem):
                    yield prior, arm, stem


def draw_samples_of(
    samples: Samples, plots: Path, name: str, *, title: str | None = None
) -> list[Path]:
    """A grid of images; of videos also strips and a film.

    Args:
        samples: what was drawn.
        plots: folder of the files.
        name: begins the files' names.
        title: stands above the images, and above the strips.
    """
    images = to_unit(samples.images[:_GRID])
    drawn = [save_sample_grid(images, plots / f"{name}.png", title=title)]
    if samples.videos.shape[1] > 1:
        videos = to_unit(samples.videos)
        file = plots / f"{name}-videos.png"
        drawn.append(save_pseudo_videos(videos[:_VIDEOS], file, title=title))
        captions = frame_captions(title or name, videos.shape[1])
        drawn.append(save_gif(videos[:_FILM], plots / f"{name}.gif", captions=captions))
    return drawn


def _draw_videos(settings: GenerateSettings, data: GenerationData, plots: Path) -> list[Path]:
    """Pseudo videos of test images, and what theorem 5.4.1 says of such images."""
    longest = max(settings.frames)
    if longest == 1:
        return []
    videos = video_config(settings.videos, longest)
    images = to_unit(data.test[:_VIDEOS])
    return [
        save_pseudo_videos(pseudo_videos(images, videos), plots / "pseudo-videos.png"),
        save_theorem(to_unit(data.train[:2000]), plots / "theorem.png", videos),
    ]


def _draw_reconstructions(
    settings: GenerateSettings, data: GenerationData, folder: Path
) -> list[Path]:
    seed, images = settings.seeds[0], to_unit(data.test[:_STRIP])
    drawn: list[Path] = []
    for stem in settings.stem:
        arms = {
            arm.name: _reconstruct(tokenizer_folder(folder, arm.name, stem, seed), images)
            for arm in settings.arms
        }
        file = folder / PLOTS / f"reconstructions-{stem}.png"
        title = f"Test images and their reconstructions, stem {stem}, seed {seed}"
        drawn.append(save_reconstructions(images, arms, file, title=title))
    return drawn


def _reconstruct(folder: Path, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    one, tokenizer, *_ = open_tokenizer(folder)
    videos = video_config(one.videos, one.frames)
    seed = derive_seed(one.seed, "test videos")
    with torch.inference_mode():
        return tokenizer.reconstruct(pseudo_videos(images, videos, seed=seed))[:, -1]


def _draw_samples(settings: GenerateSettings, folder: Path) -> list[Path]:
    seed, drawn = settings.seeds[0], list[Path]()
    for prior, arm, stem in _priors(settings):
        samples = Samples.load(samples_file(folder, prior, arm.name, stem, seed))
        name = f"samples-{prior_name(prior, arm.name, stem, seed)}"
        title = f"{prior.capitalize()} prior, {arm.name}, stem {stem}, seed {seed}"
        drawn += draw_samples_of(samples, folder / PLOTS, name, title=title)
    return drawn


def _draw_curves(settings: GenerateSettings, folder: Path) -> list[Path]:
    tokenizers = {
        f"{arm.name}, {stem}": [
            tokenizer_folder(folder, arm.name, stem, seed) for seed in settings.seeds
        ]
        for stem in settings.stem
        for arm in settings.arms
    }
    priors = {
        f"{arm.name}, {stem}, {prior}": [
            prior_folder(folder, prior, arm.name, stem, seed) for seed in settings.seeds
        ]
        for prior, arm, stem in _priors(settings)
    }
    drawn = save_training_curves(tokenizers, folder / PLOTS)
    return drawn + (save_training_curves(priors, folder / PLOTS, name="prior") if priors else [])
