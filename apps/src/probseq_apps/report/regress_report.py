"""Makes the report of a `regress` experiment from the files of its runs."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.data.zinc import GraphData
from probseq_apps.experiments.regress_evaluation import evaluate_numbers, make_entries
from probseq_apps.experiments.regress_prediction import load_number_predictions
from probseq_apps.experiments.regress_settings import (
    REGRESS,
    RegressSettings,
    parse_regression_method,
)
from probseq_apps.report.facts import (
    machine_facts,
    machine_line,
    method_facts,
    method_list,
    pictures,
    seconds_of,
    summaries_of,
)
from probseq_apps.report.regress_plots import write_regress_plots
from probseq_apps.report.table import LEGEND, markdown_table, terminal_table
from probseq_apps.training.files import write_atomic


def write_regress_report(
    folder: Path,
    settings: RegressSettings,
    data: GraphData,
    files: Mapping[str, Sequence[Path]],
    *,
    recipe: str,
) -> str:
    """Evaluate the stored predictions; write `report.json`, `report.md` and `plots/`.

    Args:
        folder: the experiment's folder; all its runs are finished.
        settings: what was compared.
        data: gives sizes and notes.
        files: for each trained method, the predictions of each seed; they lie in the runs' folders.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.
    """
    methods = {name: parse_regression_method(name) for name in settings.method}
    runs = {
        name: [load_number_predictions(file) for file in found] for name, found in files.items()
    }
    rows = {name: make_entries(method, runs[method.base.name]) for name, method in methods.items()}
    summaries = {
        name: summaries_of([evaluate_numbers(entry) for entry in entries])
        for name, entries in rows.items()
    }
    report = {
        "experiment": REGRESS,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": _data_facts(data),
        **machine_facts(),
        "methods": {
            name: method_facts(
                method.title,
                summaries[name],
                seeds=settings.seeds,
                temperatures=(),
                train_seconds=[seconds_of(file.parent) for file in files[method.base.name]],
            )
            for name, method in methods.items()
        },
    }
    write_atomic(folder / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    plots = write_regress_plots(folder / "plots", rows, target=data.target)
    counts = {name: len(entries) for name, entries in rows.items()}
    markdown = _markdown(report, markdown_table(summaries, counts), plots)
    write_atomic(folder / "report.md", markdown)
    table = terminal_table(summaries, counts, shutil.get_terminal_size((120, 24)).columns)
    return f"\n{table}\n\n{LEGEND}\n\nreport, numbers and plots: {folder}"


def _data_facts(data: GraphData) -> dict[str, object]:
    return {
        "name": data.name,
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "target": data.target,
        "notes": list(data.notes),
    }


def _markdown(report: Mapping[str, Any], table: str, plots: Sequence[Path]) -> str:
    facts = report["data"]
    notes = "".join(f"- {note}\n" for note in facts["notes"])
    return f"""# {facts["name"]}: {", ".join(report["methods"])}

{facts["train"]:,} training, {facts["validation"]:,} validation and {facts["test"]:,} test
molecules; the target is `{facts["target"]}`, and errors are in its unit. Recipe
`{report["recipe"]}`, seeds {", ".join(map(str, report["settings"]["seeds"]))}; all settings are in
`config.json`.

{notes}
{table}

{LEGEND}

{method_list(report["methods"])}

{machine_line(report)}

## Plots

Predicted values are those of the first seed. Coverage and error by variance are means over the
seeds; histograms and ROC curves pool the seeds, so their AUROC differs a little from the table's.

{pictures(plots)}
"""
