"""Pictures of `probseq generate diffusion`: which are drawn, and of what."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData, to_unit
from probseq_apps.experiments.diffusion_model import arm_videos
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.experiments.generate_files import model_samples_file
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.report.arm_curves import save_bars
from probseq_apps.report.arm_draw import PLOTS, draw_losses, draw_process, draw_samples
from probseq_apps.report.arm_results import Result, arms_of
from probseq_apps.report.diffusion_curves import save_frame_errors
from probseq_apps.report.diffusion_results import Arm, diffusion_arms
from probseq_apps.report.diffusion_tables import quality_measures
from probseq_apps.report.generate_pictures import save_rows, save_theorem
from probseq_apps.report.training_curves import Quantity
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.plots import frame_captions, frame_heads, save_gif

_LOSSES = {
    name: Quantity(name, title, label, wide=True)
    for name, title, label in (
        ("loss", "Training loss", "Hybrid loss"),
        ("parts/mse", "Squared error of the noise, training", "Squared error per number"),
        ("parts/vlb", "Variational bound, training", "Bits per number, one step"),
    )
}
# Strips of generated videos, and videos of a film.
_STRIPS, _FILM = 3, 16


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
    plots, seed = folder / PLOTS, settings.seeds[0]
    groups, measures = arms_of(results), quality_measures(results)
    names = [group.name for group in groups]
    videos = [arm for arm in diffusion_arms(results) if arm.corruption is not None]
    drawn = [save_bars(groups, measures, real, plots / "summary.png")]
    drawn += save_frame_errors(results, plots / "frame-errors.png")
    drawn += _draw_theorem(settings, data, videos, plots)
    drawn += draw_samples(data, folder, names, seed)
    for arm in videos:
        drawn += _draw_videos(settings, data, folder, arm)
    of_videos = {arm.group.name for arm in videos}
    for name in names:
        what = name if name in of_videos else f"{name}, predicted image"
        drawn += draw_process(folder, name, seed, what=what, unit="step")
    return drawn + draw_losses(folder, names, settings.seeds, _LOSSES)


def _draw_theorem(
    settings: DiffusionSettings, data: GenerationData, videos: Sequence[Arm], plots: Path
) -> list[Path]:
    """Theorem 5.4.1 on the data's own covariance, for the longest videos that were compared."""
    if not videos:
        return []
    longest = max(videos, key=lambda arm: arm.frames)
    one = settings.one_model(longest.group.name, settings.seeds[0])
    file = plots / "theorem.png"
    return [save_theorem(to_unit(data.train), file, arm_videos(one), context=one.context)]


def _draw_videos(
    settings: DiffusionSettings, data: GenerationData, folder: Path, arm: Arm
) -> list[Path]:
    """Strips of generated videos below one that was made of a test image, and a film."""
    name, seed = arm.group.name, settings.seeds[0]
    file = model_samples_file(folder, name, seed)
    if not file.is_file():
        return []
    videos = to_unit(Samples.load(file).videos)
    made = pseudo_videos(to_unit(data.test[:1]), arm_videos(settings.one_model(name, seed)))
    rows = [*made, *videos[:_STRIPS]]
    labels = ["made of a test image"] + ["generated"] * (len(rows) - 1)
    heads, plots = frame_heads(arm.frames), folder / PLOTS
    title = f"{name}, seed {seed}: frames of videos"
    strips = save_rows(labels, rows, plots / f"videos-{name}.png", heads, title=title)
    captions = frame_captions(name, arm.frames)
    return [strips, save_gif(videos[:_FILM], plots / f"videos-{name}.gif", captions=captions)]
