"""Writes the report of `probseq generate run`."""

import json
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.generate_settings import GENERATE, GenerateSettings
from probseq_apps.report.facts import machine_facts, machine_line, pictures
from probseq_apps.report.generate_results import Result
from probseq_apps.report.generate_tables import (
    LEGEND,
    generation_table,
    reconstruction_table,
)
from probseq_apps.report.generate_verdict import verdict_notes
from probseq_apps.training.files import write_atomic


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
    notes = verdict_notes(results, floors)
    report: dict[str, Any] = {
        "experiment": GENERATE,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": {
            "name": data.name,
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
            "channels": data.channels,
            "image_size": data.image_size,
            "notes": list(data.notes),
        },
        "results": [dict(result) for result in results],
        "floors": [dict(floor) for floor in floors],
        "real": dict(real),
        "notes": notes,
        **machine_facts(),
    }
    write_atomic(folder / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    tables = [reconstruction_table(results, floors, real)]
    generation = generation_table(results, real)
    tables += [] if generation is None else [generation]
    text = _markdown(report, "\n\n".join(table.markdown() for table in tables))
    # What was measured took long: it is written before anything is drawn, and shown in any case.
    write_atomic(folder / "report.md", text)
    width = shutil.get_terminal_size((120, 24)).columns
    told = "\n".join(textwrap.fill(f"- {note}", width, subsequent_indent="  ") for note in notes)
    parts = [*(table.text(width) for table in tables), textwrap.fill(LEGEND, width), told]
    shown = "\n\n".join(parts)
    try:
        plots = draw()
    except (LookupError, ValueError, OSError) as error:
        print(f"\n{shown}")
        raise RuntimeError(
            f"{folder} holds the report without plots, which cannot be drawn: "
            f"{type(error).__name__}: {error}"
        ) from error
    write_atomic(folder / "report.md", f"{text}\n## Plots\n\n{pictures(plots)}\n")
    return f"\n{shown}\n\nreport, numbers and plots: {folder}"


def _markdown(report: dict[str, Any], tables: str) -> str:
    facts, settings = report["data"], report["settings"]
    about = "".join(f"- {note}\n" for note in facts["notes"])
    found = "".join(f"- {note}\n" for note in report["notes"])
    size = facts["image_size"]
    return f"""# {facts["name"]}: pseudo videos

{facts["train"]:,} training, {facts["validation"]:,} validation and {facts["test"]:,} test images of
{facts["channels"]}x{size}x{size}. Recipe `{report["recipe"]}`, corruption
`{settings["videos"]["corruption"]}`, seeds {", ".join(map(str, settings["seeds"]))}; all settings
are in `config.json`.

{about}
{tables}

{LEGEND}

## What these runs show

"Clearly" means that Welch's t-test (5%) over the seeds tells two means apart.

{found}
{machine_line(report)}
"""
