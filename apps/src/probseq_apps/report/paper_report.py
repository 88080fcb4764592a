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
from matplotlib.patches import Rectangle

from probseq_apps.engine.files import write_atomic
from probseq_apps.experiments.report_settings import ReportSettings
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
from probseq_apps.report.papers import PaperTable, load_table, table_names
from probseq_apps.report.tables import aligned_blocks

_DEFAULT_FOLDER = Path("runs")
MISSING = "—"
NO_TARGET = "†"

# Inches: DejaVu Sans at 9 points takes a little less for an average letter.
_LETTER, _LINE, _GAP, _MARGIN = 0.078, 0.21, 0.22, 0.3
_TITLE_LETTER = 0.105
_SIZE, _DPI = 9.0, 150
# Okabe and Ito's green and vermilion.
_MARKS = {"▲": "#009E73", "▼": "#D55E00", "": "#000000"}
_PAPER, _SHADE, _RULE = "#6A6A6A", "#F2F5F8", "#404040"
_NOTE_WIDTH = 7.0


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


class _Block(NamedTuple):
    group: ComparedGroup
    lines: list[PaperLine]
    widths: list[float]


def draw(comparison: Comparison, left_out: list[str]) -> Figure:
    """Draw the paper's numbers in grey, ours below in black or the colour of the mark."""
    blocks = _aligned([_block(comparison, group) for group in comparison.groups])
    inner = max(_NOTE_WIDTH, *(sum(block.widths) for block in blocks))
    letters = int(inner / (_LETTER * 0.86))
    name = f"Table {comparison.table.name}: {comparison.table.title}"
    title = textwrap.wrap(name, int(inner / _TITLE_LETTER))
    notes = [
        line
        for note in (f"{comparison.table.paper}.", *footnotes(comparison, left_out))
        for line in textwrap.wrap(note, letters, subsequent_indent="   ")
    ]
    table_lines = sum(len(block.lines) + 2 for block in blocks)
    height = 2 * _MARGIN + _LINE * (len(title) + table_lines + 1) + 0.85 * _LINE * len(notes)
    figure = Figure(figsize=(inner + 2 * _MARGIN, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    pen = _Pen(figure, inner + 2 * _MARGIN, height)
    for line in title:
        pen.text(_MARGIN, line, size=_SIZE + 2, weight="bold")
        pen.down(_LINE)
    pen.down(0.5 * _LINE)
    for block in blocks:
        _draw_block(pen, block)
        pen.down(0.6 * _LINE)
    for line in notes:
        pen.text(_MARGIN, line, size=_SIZE - 1, colour=_PAPER)
        pen.down(0.85 * _LINE)
    return figure


class _Pen:
    """Writes from the top downwards, in inches."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self._figure, self._width, self._height = figure, width, height
        self._top = _MARGIN

    def down(self, inches: float) -> None:
        self._top += inches

    def text(
        self,
        left: float,
        text: str,
        *,
        size: float = _SIZE,
        weight: str = "normal",
        colour: str = "#000000",
        align: str = "left",
    ) -> None:
        x, y = left / self._width, 1 - (self._top + 0.5 * _LINE) / self._height
        # Dollar signs and carets are meant as they stand.
        self._figure.text(
            *(x, y, text),
            fontsize=size,
            fontweight=weight,
            color=colour,
            ha=align,
            va="center",
            parse_math=False,
        )

    def shade(self, width: float, lines: int) -> None:
        self._rectangle(width, lines * _LINE, _SHADE)

    def rule(self, width: float) -> None:
        self._rectangle(width, 0.012, _RULE)

    def _rectangle(self, width: float, height: float, colour: str) -> None:
        left, bottom = _MARGIN / self._width, 1 - (self._top + height) / self._height
        shape = Rectangle(
            (left, bottom),
            width / self._width,
            height / self._height,
            transform=self._figure.transFigure,
            facecolor=colour,
            edgecolor="none",
            zorder=-1,
        )
        self._figure.add_artist(shape)


def _block(comparison: Comparison, group: ComparedGroup) -> _Block:
    lines = group_lines(comparison, group)
    first = max(len(group.title or "Model"), *(len(line.label) for line in lines))
    columns = [
        max(len(head), *(len(line.cells[place]) + 2 for line in lines))
        for place, head in enumerate(group.heads)
    ]
    return _Block(group, lines, [_LETTER * count + _GAP for count in (first, *columns)])


def _aligned(blocks: list[_Block]) -> list[_Block]:
    """Groups of the same number of columns, each as wide as the widest of its place."""
    widths: dict[int, list[float]] = {}
    for block in blocks:
        so_far = widths.setdefault(len(block.widths), block.widths)
        widths[len(block.widths)] = list(map(max, so_far, block.widths))
    return [block._replace(widths=widths[len(block.widths)]) for block in blocks]


def _draw_block(pen: _Pen, block: _Block) -> None:
    total = sum(block.widths)
    # Numbers are set to the right; the marks stand behind them.
    rights = [_MARGIN + sum(block.widths[: place + 2]) for place in range(len(block.widths) - 1)]
    pen.text(_MARGIN, block.group.title or "Model", weight="bold")
    for right, head in zip(rights, block.group.heads, strict=True):
        pen.text(right - 2 * _LETTER, head, weight="bold", align="right")
    pen.down(_LINE)
    pen.rule(total)
    pen.down(0.15 * _LINE)
    for place, line in enumerate(block.lines):
        if place % 4 == 0:
            pen.shade(total, 2)
        pen.text(_MARGIN, line.label, colour="#000000" if line.ours else _PAPER)
        for right, cell, mark in zip(rights, line.cells, line.marks, strict=True):
            colour = _MARKS[mark] if line.ours else _PAPER
            pen.text(right - 2 * _LETTER, cell, colour=colour, align="right")
            pen.text(right - 1.6 * _LETTER, mark, colour=colour)
        pen.down(_LINE)
    pen.rule(total)
    pen.down(0.25 * _LINE)
