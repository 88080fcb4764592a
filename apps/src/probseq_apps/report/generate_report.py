"""Writes the report of `probseq generate run`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.generate_settings import GENERATE, GenerateSettings
from probseq_apps.report.arm_report import write_arm_report
from probseq_apps.report.arm_results import Result
from probseq_apps.report.generate_tables import (
    LEGEND,
    generation_table,
    reconstruction_table,
)
from probseq_apps.report.generate_verdict import verdict_notes


def write_generate_report(
    folder: Path,
    settings: GenerateSettings,
    results: Sequence[Result],
    floors: Sequence[Result],
    real: Result,
    *,
    data: GenerationData,
    recipe: str,
    draw: Callable[[], Sequence[Path]],
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        results: contents of `results/*.json`, in the order of the arms.
        floors: of patch k-means, in the same form: "arm" is the arm whose tokens it equals, "stem"
            is `patch-k-means`, "steps" is None, "parameters" counts the codebook.
        real: what `evaluate_generation` says of the test images.
        data: gives sizes and notes.
        recipe: name of the recipe that the settings came from.
        draw: makes the plots, in `plots/`.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    about = {
        "experiment": GENERATE,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "results": [dict(result) for result in results],
        "floors": [dict(floor) for floor in floors],
        "real": dict(real),
    }
    generation = generation_table(results, real)
    return write_arm_report(
        folder,
        about,
        data=data,
        title="pseudo videos",
        opening=f"""Recipe `{recipe}`, corruption
`{settings.videos.corruption}`, seeds {", ".join(map(str, settings.seeds))}; all settings
are in `config.json`.""",
        tables=[
            reconstruction_table(results, floors, real),
            *([] if generation is None else [generation]),
        ],
        legend=LEGEND,
        notes=verdict_notes(results, floors),
        draw=draw,
    )
