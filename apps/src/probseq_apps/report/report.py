"""Makes the report of an experiment from the files of its runs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.experiments.evaluation import evaluate
from probseq_apps.experiments.methods import MethodSpec, parse_method
from probseq_apps.experiments.models import Data
from probseq_apps.experiments.prediction import load_predictions
from probseq_apps.experiments.rows import Row, Sets, make_row
from probseq_apps.experiments.runs import run_folder, stored_predictions, warm_start_folder
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.report.details import details, on_test_sets
from probseq_apps.report.facts import (
    machine_facts,
    machine_line,
    method_facts,
    method_list,
    pictures,
    seconds_of,
    summaries_of,
)
from probseq_apps.report.plots import write_plots
from probseq_apps.report.table import LEGEND, markdown_table, terminal_table
from probseq_apps.training.files import write_atomic


def write_report(folder: Path, settings: ClassifySettings, data: Data, *, recipe: str) -> str:
    """Evaluate the stored predictions; write `report.json`, `report.md` and `plots/`.

    Args:
        folder: the experiment's folder; all its runs are finished.
        settings: what was compared.
        data: gives sizes and notes.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.
    """
    rows = {name: _row(folder, name, settings) for name in settings.method}
    summaries = {
        name: summaries_of([evaluate(sets) for sets in row.predictions])
        for name, row in rows.items()
    }
    report = {
        "experiment": "classify",
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": _data_facts(data),
        **machine_facts(),
        "methods": {
            name: method_facts(
                parse_method(name).title,
                summaries[name],
                seeds=settings.seeds,
                temperatures=row.temperatures,
                train_seconds=[
                    _train_seconds(folder, parse_method(name).base, seed) for seed in settings.seeds
                ],
            )
            for name, row in rows.items()
        },
    }
    write_atomic(folder / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    plots = write_plots(folder / "plots", rows, summaries)
    counts = {name: len(row.predictions) for name, row in rows.items()}
    tables = markdown_table(on_test_sets(summaries), counts)
    markdown = _markdown(report, tables, details(summaries, counts), plots)
    write_atomic(folder / "report.md", markdown)
    table = terminal_table(summaries, counts, shutil.get_terminal_size((120, 24)).columns)
    return f"\n{table}\n\n{LEGEND}\n\nreport, numbers and plots: {folder}"


def _row(folder: Path, name: str, settings: ClassifySettings) -> Row:
    method = parse_method(name)
    files = [stored_predictions(folder, method, seed) for seed in settings.seeds]
    members: list[Sets] = [load_predictions(file) for file in files]
    return make_row(method, members)


def _train_seconds(folder: Path, spec: MethodSpec, seed: int) -> float:
    return seconds_of(run_folder(folder, spec, seed), warm_start_folder(folder, spec, seed))


def _data_facts(data: Data) -> dict[str, object]:
    return {
        "name": data.name,
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "classes": data.num_classes,
        "notes": list(data.notes),
    }


def _markdown(report: Mapping[str, Any], table: str, more: str, plots: list[Path]) -> str:
    facts = report["data"]
    notes = "".join(f"- {note}\n" for note in facts["notes"])
    return f"""# {facts["name"]}: {", ".join(report["methods"])}

{facts["train"]:,} training, {facts["validation"]:,} validation and {facts["test"]:,} test examples
in {facts["classes"]} classes. Recipe `{report["recipe"]}`, seeds
{", ".join(map(str, report["settings"]["seeds"]))}; all settings are in `config.json`.

{notes}
{table}

{LEGEND}

{method_list(report["methods"])}

{machine_line(report)}

{more}

## Plots

Reliability diagrams and ROC curves pool the predictions of all seeds, so their ECE and AUROC differ
a little from the means in the table; risk-coverage curves are means over the seeds.

{pictures(plots)}
"""
