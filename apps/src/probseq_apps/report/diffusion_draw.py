"""Pictures of `probseq generate diffusion`: which are drawn, and of what."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData, to_unit
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.experiments.generate_files import model_folder, model_samples_file, process_file
from probseq_apps.experiments.generate_groups import CorruptionName, CorruptionSettings
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.generate_tokenizer import video_config
from probseq_apps.report.arm_curves import save_bars, save_losses
from probseq_apps.report.arm_pictures import GRID, frame_heads, save_arm_grids, save_process
from probseq_apps.report.arm_results import Result, arms_of
from probseq_apps.report.diffusion_curves import save_frame_errors
from probseq_apps.report.diffusion_process import Process
from probseq_apps.report.diffusion_results import (
    Arm,
    diffusion_arms,
    lengths_of,
)
from probseq_apps.report.diffusion_tables import quality_measures
from probseq_apps.report.films import save_gif
from probseq_apps.report.generate_pictures import save_rows, save_theorem
from probseq_apps.report.training_curves import Quantity
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos

PLOTS = "plots"
_LOSSES = {
    name: Quantity(name, title, label, wide=True)
    for name, title, label in (
        ("loss", "Training loss", "Hybrid loss"),
        ("parts/mse", "Squared error of the noise, training", "Squared error per number"),
        ("parts/vlb", "Variational bound, training", "Bits per number, one step"),
    )
}
# Strips of real and of generated videos, videos of a film, rows of a film of the process.
_REAL, _STRIPS, _FILM, _ROWS = 1, 3, 16, 4
_SPECTRUM_IMAGES = 2000


def draw_diffusion(
    settings: DiffusionSettings,
    data: GenerationData,
    folder: Path,
    results: Sequence[Result],
    real: Result,
) -> list[Path]:
    """Draw what a run made; samples are of the first seed.

    Args:
        settings: what was compared.
        data: the images.
        folder: of the experiment.
        results: of all arms and seeds.
        real: of the test images as if they were samples.

    Returns:
        The files, in `plots/`.
    """
    plots, arms = folder / PLOTS, diffusion_arms(results)
    measures = quality_measures(results)
    drawn = [save_bars(arms_of(results), measures, real, plots / "summary.png")]
    drawn += save_frame_errors(results, plots / "frame-errors.png")
    drawn += _draw_theorem(settings, data, arms, plots)
    drawn += draw_samples(data, folder, [arm.group.name for arm in arms], settings.seeds[0])
    for arm in arms:
        drawn += _draw_videos(settings, data, folder, arm)
        drawn += _draw_process(folder, arm, settings.seeds[0])
    runs = {
        arm.group.name: [model_folder(folder, arm.group.name, seed) for seed in settings.seeds]
        for arm in arms
    }
    return drawn + save_losses(runs, plots / "losses.png", _LOSSES)


def draw_samples(data: GenerationData, folder: Path, arms: Sequence[str], seed: int) -> list[Path]:
    """Samples of all arms beside images of the test part.

    Args:
        data: the images.
        folder: of the experiment.
        arms: their names.
        seed: of the models.
    """
    shown = {"real images, test part": to_unit(data.test[:GRID])}
    for arm in arms:
        file = model_samples_file(folder, arm, seed)
        if file.is_file():
            shown[arm] = to_unit(Samples.load(file).images[:GRID])
    title = f"{data.name}: samples, seed {seed}"
    return [save_arm_grids(shown, folder / PLOTS / "samples.png", title=title)]


def videos_of(settings: DiffusionSettings, frames: int, kind: CorruptionName) -> PseudoVideoConfig:
    """Which videos an arm learned from.

    Args:
        settings: of the comparison.
        frames: T.
        kind: what makes the frames before the image.
    """
    own = settings.frames
    made = CorruptionSettings(
        corruption=kind, blur_rate=own.blur_rate, beta_min=own.beta_min, beta_max=own.beta_max
    )
    return video_config(made, frames)


def _draw_theorem(
    settings: DiffusionSettings, data: GenerationData, arms: Sequence[Arm], plots: Path
) -> list[Path]:
    """Theorem 5.4.1 on the data's own covariance, for the longest videos that were compared."""
    lengths = lengths_of(arms)
    if not lengths:
        return []
    frames = lengths[-1]
    context = frames // 2 if settings.frames.context is None else settings.frames.context
    videos = videos_of(settings, frames, "first-order-noise")
    images = to_unit(data.train[:_SPECTRUM_IMAGES])
    return [save_theorem(images, plots / "theorem.png", videos, context=context)]


def _draw_videos(
    settings: DiffusionSettings, data: GenerationData, folder: Path, arm: Arm
) -> list[Path]:
    """Strips of generated videos below one that was made of a test image, and a film."""
    name, seed = arm.group.name, settings.seeds[0]
    file = model_samples_file(folder, name, seed)
    if arm.corruption is None or not file.is_file():
        return []
    videos = to_unit(Samples.load(file).videos)
    config = videos_of(settings, arm.frames, arm.corruption)
    made = pseudo_videos(to_unit(data.test[:_REAL]), config)
    heads = frame_heads(arm.frames)
    rows = [*made, *videos[:_STRIPS]]
    labels = ["made of a test image"] * _REAL + ["generated"] * (len(rows) - _REAL)
    plots = folder / PLOTS
    title = f"{name}, seed {seed}: frames of videos"
    strips = save_rows(labels, rows, plots / f"videos-{name}.png", heads, title=title)
    captions = [f"{name}: frame {head}" if head != "image" else f"{name}: image" for head in heads]
    return [strips, save_gif(videos[:_FILM], plots / f"videos-{name}.gif", captions=captions)]


def _draw_process(folder: Path, arm: Arm, seed: int) -> list[Path]:
    """A film of the denoising."""
    name = arm.group.name
    file = process_file(folder, name, seed)
    if not file.is_file():
        return []
    process = Process.load(file)
    if arm.frames > 1:
        process = process._replace(frames=process.frames[:_ROWS])
    what = f"{name}, predicted image" if arm.frames == 1 else name
    out = folder / PLOTS / f"process-{name}.gif"
    return [save_process(process, out, name=what, unit="step")]
