"""A comparison with a paper's table as text: for the terminal and for Markdown.

Each row of the paper stands above ours. The same lines are drawn by
:mod:`probseq_apps.report.paper_picture`.
"""

import math
import textwrap
from typing import NamedTuple

from probseq_apps.report.compare import Cell, ComparedGroup, Comparison, Mark
from probseq_apps.report.difference import LEGEND
from probseq_apps.report.generation_notes import COMMANDS
from probseq_apps.report.run_notes import run_notes
from probseq_apps.report.tables import aligned_blocks

MISSING = "—"
NO_TARGET = "†"


class PaperLine(NamedTuple):
    """A line of the table: the paper's numbers, or ours.

    Attributes:
        label: the row as the paper calls it, or our method and the runs it is from.
        cells: one for each column.
        marks: the mark of each cell; empty marks for the paper's.
        ours: whether the numbers are ours.
    """

    label: str
    cells: tuple[str, ...]
    marks: tuple[Mark, ...]
    ours: bool


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
    """Everything that is said below the table.

    Args:
        comparison: the table.
        left_out: notes on reports that could not be used.
    """
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
            "What the recipes do otherwise than the papers is written in probseq_apps.recipes."
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
    """The table as a Markdown file.

    Args:
        comparison: the table.
        left_out: notes on reports that could not be used.
        picture: file name of the drawn table.
    """
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
    text = f"{cell.ours.mean:.{decimals}f}"
    error = cell.ours.standard_error
    return text if error is None else f"{text}±{error:.{decimals}f}"


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
