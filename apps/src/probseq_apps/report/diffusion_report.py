"""Writes the report of `probseq generate diffusion`."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.diffusion_settings import GENERATE_DIFFUSION, DiffusionSettings
from probseq_apps.report.arm_report import write_arm_report
from probseq_apps.report.arm_results import Result
from probseq_apps.report.diffusion_draw import draw_diffusion
from probseq_apps.report.diffusion_tables import FRAME_LEGEND, LEGEND, arms_table, frame_tables
from probseq_apps.report.diffusion_verdict import diffusion_notes


def write_diffusion_report(
    folder: Path,
    settings: DiffusionSettings,
    results: Sequence[Result],
    real: Result,
    *,
    data: GenerationData,
    recipe: str,
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Pictures are of the first seed: of `samples/ARM-seedS.npz` (`Samples`, with all frames of the
    first videos) and `process/ARM-seedS.npz` (`Process`); a file that is gone leaves its pictures
    out. Loss curves are of the runs in `models/ARM-seedS`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        results: contents of `results/*.json`, in the order of the arms.
        real: what `evaluate_generation` says of the test images.
        data: gives sizes, notes, real images and the covariance of the theorem's plot.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    about = {
        "experiment": GENERATE_DIFFUSION,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "results": [dict(result) for result in results],
        "real": dict(real),
    }
    errors = frame_tables(results)
    frames = settings.frames
    return write_arm_report(
        folder,
        about,
        data=data,
        title="diffusion models of images and of pseudo videos",
        opening=f"""Recipe `{recipe}`, seeds {", ".join(map(str, settings.seeds))}, frames' noise
{frames.beta_min:g} to {frames.beta_max:g}; all settings are in `config.json`.""",
        tables=[arms_table(results, real), *errors],
        legend=f"{LEGEND} {FRAME_LEGEND}" if errors else LEGEND,
        notes=diffusion_notes(results),
        draw=lambda: draw_diffusion(settings, data, folder, results, real),
    )
