"""Writes the report of `probseq generate hvae`."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.hvae_settings import GENERATE_HVAE, HvaeSettings
from probseq_apps.report.arm_report import write_arm_report
from probseq_apps.report.arm_results import Result
from probseq_apps.report.hvae_draw import draw_hvae
from probseq_apps.report.hvae_tables import LEGEND, hvae_table
from probseq_apps.report.hvae_verdict import hvae_notes


def write_hvae_report(
    folder: Path,
    settings: HvaeSettings,
    results: Sequence[Result],
    real: Result,
    *,
    data: GenerationData,
    recipe: str,
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Pictures are of the first seed: of `samples/ARM-seedS.npz` (`Samples`) and
    `process/ARM-seedS.npz` (`Process`); a file that is gone leaves its pictures out. Loss curves
    are of the runs in `models/ARM-seedS`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        results: contents of `results/*.json`, in the order of the arms.
        real: what `evaluate_generation` says of the test images.
        data: gives sizes, notes and real images.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    about = {
        "experiment": GENERATE_HVAE,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "results": [dict(result) for result in results],
        "real": dict(real),
    }
    return write_arm_report(
        folder,
        about,
        data=data,
        title="hierarchical VAEs, heat equation and learned encoder",
        opening=f"""Recipe `{recipe}`, seeds {", ".join(map(str, settings.seeds))}; all settings
are in `config.json`.""",
        tables=[hvae_table(results, real)],
        legend=LEGEND,
        notes=hvae_notes(results, real),
        draw=lambda: draw_hvae(settings, data, folder, results, real),
    )
