"""Writes the files of a comparison of arms: `report.json`, the plots and `report.md`."""

import json
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.data.generation import GenerationData
from probseq_apps.report.arm_tables import Table
from probseq_apps.report.facts import machine_facts, machine_line, pictures
from probseq_apps.training.files import write_atomic


def write_arm_report(
    folder: Path,
    about: Mapping[str, Any],
    *,
    data: GenerationData,
    title: str,
    opening: str,
    tables: Sequence[Table],
    legend: str,
    notes: Sequence[str],
    draw: Callable[[], Sequence[Path]],
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Args:
        folder: the experiment's folder.
        about: "experiment", "recipe", "settings" and the results, as JSON holds them.
        data: gives sizes and notes.
        title: of `report.md`.
        opening: what stands below the sizes of the data.
        tables: the numbers.
        legend: what they are.
        notes: what they say, in words.
        draw: makes the plots, in `plots/`.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    report: dict[str, Any] = {
        **about,
        "data": _facts(data),
        "notes": list(notes),
        **machine_facts(),
    }
    write_atomic(folder / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    shown_tables = "\n\n".join(table.markdown() for table in tables)
    text = _markdown(report, title, opening, shown_tables, legend)
    # What was measured took long: it is written before anything is drawn, and shown in any case.
    write_atomic(folder / "report.md", text)
    width = shutil.get_terminal_size((120, 24)).columns
    told = "\n".join(textwrap.fill(f"- {note}", width, subsequent_indent="  ") for note in notes)
    parts = [*(table.text(width) for table in tables), textwrap.fill(legend, width), told]
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


def _facts(data: GenerationData) -> dict[str, Any]:
    return {
        "name": data.name,
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "channels": data.channels,
        "image_size": data.image_size,
        "notes": list(data.notes),
    }


def _markdown(report: Mapping[str, Any], title: str, opening: str, tables: str, legend: str) -> str:
    facts = report["data"]
    about = "".join(f"- {note}\n" for note in facts["notes"])
    found = "".join(f"- {note}\n" for note in report["notes"])
    size = facts["image_size"]
    return f"""# {facts["name"]}: {title}

{facts["train"]:,} training, {facts["validation"]:,} validation and {facts["test"]:,} test images of
{facts["channels"]}x{size}x{size}. {opening}

{about}
{tables}

{legend}

## What these runs show

"Clearly" means that Welch's t-test (5%) over the seeds tells two means apart.

{found}
{machine_line(report)}
"""
