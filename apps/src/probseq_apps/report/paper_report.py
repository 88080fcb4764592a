"""`probseq report`: a table of a paper beside what run folders hold."""

import shutil
import sys
import webbrowser
from pathlib import Path

from probseq_apps.engine.files import write_atomic
from probseq_apps.experiments.report_settings import ReportSettings
from probseq_apps.report.compare import compare, fits_experiment
from probseq_apps.report.generation_notes import COMMANDS
from probseq_apps.report.html import write_html
from probseq_apps.report.measured import MeasuredRun, find_runs
from probseq_apps.report.paper_picture import draw
from probseq_apps.report.paper_text import markdown_text, terminal_text
from probseq_apps.report.papers import PaperTable, load_table, table_names

_DEFAULT_FOLDER = Path("runs")


def report(settings: ReportSettings) -> None:
    """Make the table that is named, list all, or make the pages of runs anew and open them."""
    if settings.table is not None:
        paper_report(settings.table, settings)
        return
    for folder in () if settings.show_list else settings.run_folders:
        page = write_html(folder)
        print(page)
        if sys.stdout.isatty():
            webbrowser.open(page.resolve().as_uri())
    if not settings.show_list:
        return
    for name in table_names():
        print(f"{name.ljust(9)} {load_table(name).title}")


def paper_report(name: str, settings: ReportSettings) -> None:
    """Print a table, and write it as Markdown and as a picture.

    Args:
        name: of the table.
        settings: which runs, and where to write.

    Raises:
        ValueError: a folder that was named holds no finished run.
    """
    runs, left_out = _runs(settings.run_folders)
    table = load_table(name)
    if settings.run_folders:
        left_out += _others(table, runs)
    comparison = compare(table, runs)
    stem = f"table-{comparison.table.name.replace(':', '-')}"
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    markdown, picture = (settings.output_dir / f"{stem}.{end}" for end in ("md", "png"))
    write_atomic(markdown, markdown_text(comparison, left_out, picture.name))
    draw(comparison, left_out).savefig(picture)
    print(terminal_text(comparison, left_out, shutil.get_terminal_size((120, 24)).columns))
    print(f"\nwritten: {markdown}, {picture}")


def _others(table: PaperTable, runs: list[MeasuredRun]) -> list[str]:
    """Notes on runs of experiments that the table has no numbers of."""
    wanted = (
        "not of `probseq generate`"
        if table.experiment is None
        else f"of `{COMMANDS[table.experiment]}`"
    )
    return [
        f"left out: {run.folder} is of the experiment {run.experiment!r}, and the numbers of table "
        f"{table.name} are {wanted}"
        for run in runs
        if not fits_experiment(table, run)
    ]


def _runs(folders: tuple[Path, ...]) -> tuple[list[MeasuredRun], list[str]]:
    if folders:
        return find_runs(folders)
    # Nothing measured yet: the paper's numbers alone.
    if not any(_DEFAULT_FOLDER.glob("*/report.json")):
        return [], []
    return find_runs([_DEFAULT_FOLDER])
