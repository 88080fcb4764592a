"""Pictures of `probseq generate hvae`: which are drawn, and of what."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.hvae_settings import HvaeSettings
from probseq_apps.report.arm_curves import save_bars
from probseq_apps.report.arm_draw import PLOTS, draw_losses, draw_process, draw_samples
from probseq_apps.report.arm_results import Result, arms_of
from probseq_apps.report.hvae_tables import distance_measure, score_measure
from probseq_apps.report.training_curves import Quantity

_LOSSES = {
    name: Quantity(name, title, label, wide=True)
    for name, title, label in (
        ("loss", "Bound, training; arms don't compare", "Nats per dimension"),
        ("parts/steps", "Steps of the decoder; arms don't compare", "Nats per dimension"),
        ("parts/prior", "Prior, training; arms don't compare", "Nats per dimension"),
        ("parts/mse", "Error of the sharper frame, training", "Squared error per pixel"),
    )
}


def draw_hvae(
    settings: HvaeSettings,
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
    groups, seed = arms_of(results), settings.seeds[0]
    names = [group.name for group in groups]
    summary = folder / PLOTS / "summary.png"
    # Not the bound, by which the arms don't compare.
    measures = [score_measure(results), distance_measure(results)]
    drawn = [save_bars(groups, measures, real, summary)]
    drawn += draw_samples(data, folder, names, seed)
    for name in names:
        drawn += draw_process(folder, name, seed, what=f"{name} HVAE", unit="level")
    return drawn + draw_losses(folder, names, settings.seeds, _LOSSES)
