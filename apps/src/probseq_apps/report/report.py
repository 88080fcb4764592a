"""Makes the report of an experiment from the files of its runs."""

import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
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
from probseq_apps.report.plots import write_plots
from probseq_apps.report.summary import Summary, summarise
from probseq_apps.report.table import LEGEND, markdown_table, terminal_table
from probseq_apps.training.files import write_atomic
from probseq_apps.training.runs import read_finished

_PACKAGES = (
    *("probseq-apps", "probseq", "sgpa", "cgpt-transformer", "kepsvgp"),
    *("torch", "numpy", "scikit-learn"),
)


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
    summaries = {name: _summaries(row) for name, row in rows.items()}
    report = {
        "experiment": "classify",
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": _data_facts(data),
        "versions": {name: version(name) for name in _PACKAGES} | {"python": _python()},
        "machine": platform.platform(),
        "methods": {
            name: {
                "title": parse_method(name).title,
                "seeds": list(settings.seeds),
                "temperatures": row.temperatures,
                "train_seconds": [
                    _train_seconds(folder, parse_method(name).base, seed) for seed in settings.seeds
                ],
                "metrics": {key: _plain(value) for key, value in summaries[name].items()},
            }
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


def _summaries(row: Row) -> dict[str, Summary]:
    values = [evaluate(sets) for sets in row.predictions]
    return {name: summarise([found[name] for found in values]) for name in values[0]}


def _plain(summary: Summary) -> dict[str, object]:
    return {
        "mean": summary.mean,
        "standard_error": summary.standard_error,
        "values": list(summary.values),
    }


def _train_seconds(folder: Path, spec: MethodSpec, seed: int) -> float:
    folders = (run_folder(folder, spec, seed), warm_start_folder(folder, spec, seed))
    found = (read_finished(path) for path in folders)
    return round(sum(end["seconds"] for end in found if end is not None), 3)


def _data_facts(data: Data) -> dict[str, object]:
    return {
        "name": data.name,
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "classes": data.num_classes,
        "notes": list(data.notes),
    }


def _python() -> str:
    return platform.python_version()


def _markdown(report: Mapping[str, Any], table: str, more: str, plots: list[Path]) -> str:
    facts = report["data"]
    methods = "\n".join(
        f"- `{name}`: {found['title']}; trained in "
        f"{sum(found['train_seconds']) / len(found['train_seconds']):.1f} s a seed"
        + (
            f"; temperatures {', '.join(f'{t:.3f}' for t in found['temperatures'])}"
            if found["temperatures"]
            else ""
        )
        for name, found in report["methods"].items()
    )
    notes = "".join(f"- {note}\n" for note in facts["notes"])
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    pictures = "\n\n".join(f"![{path.stem}](plots/{path.name})" for path in plots)
    return f"""# {facts["name"]}: {", ".join(report["methods"])}

{facts["train"]:,} training, {facts["validation"]:,} validation and {facts["test"]:,} test examples
in {facts["classes"]} classes. Recipe `{report["recipe"]}`, seeds
{", ".join(map(str, report["settings"]["seeds"]))}; all settings are in `config.json`.

{notes}
{table}

{LEGEND}

{methods}

{versions}; {report["machine"]}.

{more}

## Plots

Reliability diagrams and ROC curves pool the predictions of all seeds, so their ECE and AUROC differ
a little from the means in the table; risk-coverage curves are means over the seeds.

{pictures}
"""
