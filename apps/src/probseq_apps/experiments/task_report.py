"""Writes the report of an experiment over tasks."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.experiments.online_tables import markdown_text, terminal_text
from probseq_apps.report.facts import machine_facts, machine_line, pictures
from probseq_apps.training.files import write_atomic


def write_task_report(
    folder: Path,
    report: Mapping[str, Any],
    *,
    opening: str,
    notes: Sequence[str],
    legend: str,
    draw: Callable[[], Sequence[Path]],
) -> str:
    """Write `report.json`, the plots that are drawn from it, and `report.md`.

    Args:
        folder: the experiment's folder.
        report: "experiment", "recipe", "settings", "data" (its name and notes among them) and
            "methods", each with its title and what was measured.
        opening: first paragraph of `report.md`.
        notes: what a reader must know about how methods were run.
        legend: what the numbers are.
        draw: makes the plots.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    whole: dict[str, Any] = {**report, **machine_facts()}
    write_atomic(folder / "report.json", json.dumps(whole, indent=2, allow_nan=False) + "\n")
    methods, data = whole["methods"], whole["data"]
    facts = "".join(f"- {fact}\n" for fact in (*data["notes"], *notes))
    titles = "\n".join(f"- `{name}`: {found['title']}" for name, found in methods.items())
    text = f"""# {data["name"]}: {", ".join(methods)}

{opening}

{facts}
{markdown_text(methods)}

{legend}

{titles}

{machine_line(whole)}
"""
    # What was measured took long: it is written before anything is drawn, and shown in any case.
    write_atomic(folder / "report.md", text)
    table = terminal_text(methods, shutil.get_terminal_size((120, 24)).columns)
    told = "\n".join(notes)
    shown = f"\n{table}\n\n{legend}\n{told}"
    try:
        plots = draw()
    except (LookupError, ValueError, OSError) as error:
        print(shown)
        raise RuntimeError(
            f"{folder} holds the report without plots, which cannot be drawn: "
            f"{type(error).__name__}: {error}"
        ) from error
    write_atomic(folder / "report.md", f"{text}\n## Plots\n\n{pictures(plots)}\n")
    return f"{shown}\n\nreport, numbers and plots: {folder}"
