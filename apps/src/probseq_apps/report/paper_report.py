"""`probseq report`: a table of a paper beside what run folders hold, as text and as a picture.

Each row of the paper stands above ours.
"""

import math
import shutil
import sys
import textwrap
import webbrowser
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from probseq_apps.engine.files import write_atomic
from probseq_apps.report.compare import (
    LEGEND,
    Cell,
    ComparedGroup,
    Comparison,
    Mark,
    compare,
    fits_experiment,
)
from probseq_apps.report.html import write_html
from probseq_apps.report.measured import MeasuredRun, find_runs
from probseq_apps.report.paper_notes import COMMANDS, run_notes
from probseq_apps.report.papers import PaperTable, ReportSettings, load_table, table_names
from probseq_apps.report.tables import aligned_blocks

_DEFAULT_FOLDER = Path("runs")
MISSING = "—"
NO_TARGET = "†"

# Inches: a letter of DejaVu Sans Mono at 9 points.
_LETTER, _LINE, _MARGIN, _DPI = 0.0755, 0.19, 0.3, 150
_LETTERS, _GREY = 130, "#6A6A6A"


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
    """Print a table, and write it as Markdown and as a picture."""
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


class PaperLine(NamedTuple):
    """A line of the table: the paper's numbers, or ours."""

    label: str  # the row as the paper calls it, or our method and the runs it is from
    cells: tuple[str, ...]  # one for each column
    marks: tuple[Mark, ...]  # the mark of each cell; empty marks for the paper's
    ours: bool  # whether the numbers are ours


def group_lines(comparison: Comparison, group: ComparedGroup) -> list[PaperLine]:
    """Two lines for each row of a group."""
    numbers = {run.folder: number for number, run in enumerate(comparison.runs, start=1)}
    decimals = [
        max(row.cells[place].paper.decimals for row in group.rows)
        for place in range(len(group.heads))
    ]
    lines: list[PaperLine] = []
    for row in group.rows:
        blank: tuple[Mark, ...] = ("",) * len(row.cells)
        lines.append(PaperLine(row.label, tuple(map(_paper, row.cells)), blank, ours=False))
        places = sorted({numbers[run.folder] for cell in row.cells for run in cell.runs})
        where = f" [{','.join(map(str, places))}]" if places else ""
        lines.append(
            PaperLine(
                f"  ours: {row.method}{where}" if row.method else "  ours: no such method",
                tuple(
                    _ours(cell, digits) for cell, digits in zip(row.cells, decimals, strict=True)
                ),
                tuple(cell.mark for cell in row.cells),
                ours=True,
            )
        )
    return lines


def footnotes(comparison: Comparison, left_out: list[str]) -> list[str]:
    """Everything that is said below the table."""
    table = comparison.table
    notes: list[str] = []
    if table.kind == "metrics":
        theirs = (
            f"a {table.error} in the paper, "
            if any(cell.paper.error is not None for cell in _cells(comparison))
            else ""
        )
        notes += [f"± is {theirs}a standard error over seeds in ours.", LEGEND]
    if any(not cell.paper.target for cell in _cells(comparison)):
        notes.append(f"{NO_TARGET} a slip of the paper, no target.")
    if any(cell.same is not None for cell in _cells(comparison)):
        notes.append(
            "In parentheses: the rank that the paper's numbers give among the methods and tasks "
            "that ours are over."
        )
        notes.append(f"Tasks: {'; '.join(comparison.tasks)}.")
    notes += table.notes
    runs = run_notes(comparison)
    if runs:
        runs.append(
            "What the recipes do otherwise than the papers is written in probseq_apps.settings."
        )
    return notes + (runs or [_nothing(comparison)]) + left_out


def terminal_text(comparison: Comparison, left_out: list[str], width: int) -> str:
    """The table for a terminal of some width; columns that don't fit go below."""
    text = [textwrap.fill(_title(comparison), width), ""]
    for group in comparison.groups:
        rows = [
            [line.label, *(f"{c} {m or ' '}" for c, m in zip(line.cells, line.marks, strict=True))]
            for line in group_lines(comparison, group)
        ]
        heads = [group.title or "Model", *(f"{head}  " for head in group.heads)]
        text += [aligned_blocks(heads, rows, width), ""]
    text += [textwrap.fill(note, width) for note in footnotes(comparison, left_out)]
    return "\n".join(text)


def markdown_text(comparison: Comparison, left_out: list[str], picture: str) -> str:
    """The table as a Markdown file."""
    parts = [f"# {_title(comparison)}", f"{comparison.table.paper}."]
    for group in comparison.groups:
        heads = [group.title or "Model", *group.heads]
        rows = [heads, ["---", *("---:" for _ in group.heads)]]
        for line in group_lines(comparison, group):
            cells = [
                f"**{cell}** {mark}".rstrip() if line.ours and cell != MISSING else cell
                for cell, mark in zip(line.cells, line.marks, strict=True)
            ]
            rows.append([_escaped(line.label.strip()), *cells])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts.append("\n".join(f"- {note}" for note in footnotes(comparison, left_out)))
    parts.append(f"![Table {comparison.table.name}]({picture})")
    return "\n\n".join(parts) + "\n"


def _title(comparison: Comparison) -> str:
    return f"Table {comparison.table.name}: {comparison.table.title}"


def _paper(cell: Cell) -> str:
    text = cell.paper.text + ("" if cell.paper.target else NO_TARGET)
    return text if cell.same is None else f"{text} ({cell.same:.{cell.paper.decimals}f})"


def _ours(cell: Cell, decimals: int) -> str:
    if cell.ours is None or cell.ours.mean is None:
        return MISSING
    if decimals == 0:
        # A paper's whole seconds may be our milliseconds.
        decimals = max(0, 2 - math.floor(math.log10(abs(cell.ours.mean) or 1.0)))
    text = f"{_other_features(cell)}{cell.ours.mean:.{decimals}f}"
    error = cell.ours.standard_error
    return text if error is None else f"{text}±{error:.{decimals}f}"


def _other_features(cell: Cell) -> str:
    """Return what stands before a distance or a score in other features than Inception's."""
    kind = (cell.source or "").rpartition("/")[2]
    if kind not in ("fd", "is") or not cell.runs:
        return ""
    names = [name.removeprefix("FID").removeprefix("FD") for name in cell.runs[0].facts["features"]]
    return f"{kind.upper()}{'/'.join(names)} " if any(names) else ""


def _cells(comparison: Comparison) -> list[Cell]:
    return [cell for group in comparison.groups for row in group.rows for cell in row.cells]


def _nothing(comparison: Comparison) -> str:
    which = {None: "", True: " with augmentation", False: " without augmentation"}
    experiment = comparison.table.experiment
    command = "" if experiment is None else f"of `{COMMANDS[experiment]}` "
    return (
        f"No run folder holds a number of this table: it takes runs {command}on "
        f"{' or '.join(comparison.table.data)}{which[comparison.table.augmented]}."
    )


def _escaped(label: str) -> str:
    return label.replace("^", "\\^").replace("_", "\\_").replace("|", "\\|")


def draw(comparison: Comparison, left_out: list[str]) -> Figure:
    """Draw the text of a table, the paper's lines in grey and ours in black."""
    lines = terminal_text(comparison, left_out, _LETTERS).split("\n")
    width = _LETTER * max(map(len, lines)) + 2 * _MARGIN
    height = _LINE * len(lines) + 2 * _MARGIN
    figure = Figure(figsize=(width, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    for place, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        figure.text(
            *(_MARGIN / width, 1 - (_MARGIN + _LINE * (place + 0.5)) / height, line),
            fontsize=9.0,
            family="monospace",
            color=_GREY if below.startswith("  ours: ") else "#000000",
            va="center",
            # Dollar signs and carets are meant as they stand.
            parse_math=False,
        )
    return figure
