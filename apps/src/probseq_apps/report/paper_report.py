"""`probseq report`: a table of a paper beside what run folders hold, as text and as a picture.

Each row of the paper stands above ours.
"""

import math
import re
import shutil
import sys
import textwrap
import webbrowser
from collections.abc import Callable
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from probseq_apps.engine.files import write_atomic
from probseq_apps.registry import REGISTRY
from probseq_apps.report.claims import claims_markdown, claims_text, judge_claims
from probseq_apps.report.compare import compare, differences, fits_experiment, setting_text
from probseq_apps.report.html import write_html
from probseq_apps.report.measured import GENERATION_FACTS, REPORT, MeasuredRun, find_runs
from probseq_apps.report.over import collect, other_changes, over_markdown, over_plot
from probseq_apps.report.papers import (
    Cell,
    Group,
    PaperTable,
    ReportSettings,
    load_table,
    table_names,
)
from probseq_apps.report.report import PAGES
from probseq_apps.report.tables import aligned_blocks, markdown_table

_DEFAULT_FOLDER = Path("runs")
MISSING = "—"
# Inches: a letter of DejaVu Sans Mono at 9 points.
_LETTER, _LINE, _MARGIN, _DPI = 0.0755, 0.19, 0.3, 150
_LETTERS, _GREY = 130, "#6A6A6A"
# Command of each experiment.
_COMMANDS = {entry.kind: f"probseq {name}" for name, entry in REGISTRY.items() if entry.kind}
_WORDS = PAGES["papers"]
# A cell's text, of its number and its mark; None instead of a mark for the paper's.
_Write = Callable[[str, str | None], str]


def report(settings: ReportSettings) -> None:
    """Print a table of a paper or the list of all, or write the pages of runs and open them."""
    if settings.show_list:
        for name in table_names():
            print(f"{name.ljust(9)} {load_table(name).title}")
    if settings.table is not None:
        _paper_report(load_table(settings.table), settings)
    if settings.claims:
        _claims_report(settings)
    if settings.over is not None:
        _over_report(settings.over, settings)
    tables_only = settings.show_list or settings.table or settings.claims or settings.over
    for folder in () if tables_only else settings.run_folders:
        page = write_html(folder)
        print(page)
        if sys.stdout.isatty():
            webbrowser.open(page.resolve().as_uri())


def _runs(settings: ReportSettings) -> tuple[list[MeasuredRun], list[str]]:
    """Return the runs that are named, else those of the default folder, and notes."""
    # Without any run, the papers' numbers stand alone.
    default = [_DEFAULT_FOLDER] if any(_DEFAULT_FOLDER.glob(f"*/{REPORT}")) else []
    return find_runs(settings.run_folders or default)


def _claims_report(settings: ReportSettings) -> None:
    """Print the verdict on each claim, and write it with the papers' numbers as Markdown."""
    runs, left_out = _runs(settings)
    verdicts = judge_claims(runs)
    print(claims_text(verdicts, shutil.get_terminal_size((120, 24)).columns))
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    page = settings.output_dir / "claims.md"
    notes = "\n".join(f"- {note}" for note in left_out)
    table, rule = claims_markdown(verdicts), PAGES["claims"]["rule"]
    paragraphs = filter(None, ("# Claims of the papers", table, rule, notes))
    write_atomic(page, "\n\n".join(paragraphs) + "\n")
    print(f"\nwritten: {page}")


def _over_report(setting: str, settings: ReportSettings) -> None:
    """Print and write metrics over a setting, as Markdown and as a picture."""
    runs, left_out = _runs(settings)
    curves = collect(runs, setting)
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    page = settings.output_dir / f"over-{setting}.md"
    text, picture = over_markdown(curves, setting), page.with_suffix(".png")
    notes = "\n".join(f"- {note}" for note in (*left_out, *other_changes(runs, setting)))
    write_atomic(page, "\n\n".join(filter(None, (text, f"![]({picture.name})", notes))) + "\n")
    over_plot(curves, setting, runs[0].data).savefig(picture, dpi=_DPI)
    print(*filter(None, (text, notes, f"written: {page}, {picture}")), sep="\n\n")


def _paper_report(table: PaperTable, settings: ReportSettings) -> None:
    """Print a table, and write it as Markdown and as a picture."""
    runs, left_out = _runs(settings)
    left_out += [
        f"left out: {run.folder} is of the experiment {run.experiment!r}, and table {table.name} "
        f"{_takes(table)}"
        for run in runs
        if settings.run_folders and not fits_experiment(table, run)
    ]
    table = compare(table, runs)
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    markdown = settings.output_dir / f"table-{table.name.replace(':', '-')}.md"
    picture = markdown.with_suffix(".png")
    write_atomic(markdown, markdown_text(table, left_out, picture.name))
    draw(table, left_out).savefig(picture)
    print(terminal_text(table, left_out, shutil.get_terminal_size((120, 24)).columns))
    print(f"\nwritten: {markdown}, {picture}")


def terminal_text(table: PaperTable, left_out: list[str], width: int) -> str:
    """Return the table for a terminal of some width; columns that don't fit go below."""
    text = [textwrap.fill(f"Table {table.name}: {table.title}", width), ""]
    for group in table.groups:
        heads, *rows = _lines(table, group, lambda cell, mark: f"{cell} {mark or ' '}")
        text += ["\n\n".join(aligned_blocks([heads], rows, width)), ""]
    return "\n".join(text + [textwrap.fill(note, width) for note in footnotes(table, left_out)])


def markdown_text(table: PaperTable, left_out: list[str], picture: str) -> str:
    """Return the table as a Markdown file."""
    paragraphs = [f"# Table {table.name}: {table.title}", f"{table.paper}."]
    for group in table.groups:
        heads, *rows = _lines(table, group, _bold)
        named = [[re.sub(r"([\^_|])", r"\\\1", row[0].strip()), *row[1:]] for row in rows]
        paragraphs.append(markdown_table([heads, *named]))
    paragraphs.append("\n".join(f"- {note}" for note in footnotes(table, left_out)))
    return "\n\n".join([*paragraphs, f"![Table {table.name}]({picture})"]) + "\n"


def footnotes(table: PaperTable, left_out: list[str]) -> list[str]:
    """Return the notes below the table."""
    notes: list[str] = []
    if not table.ranks:
        known = any(cell.paper.spread[1] is not None for cell in table.cells)
        printed = f"a {table.error} in the paper, " if known else ""
        notes = [f"± is {printed}a standard error over seeds in ours.", _WORDS["legend"]]
    runs = [f"[{n}] {_note(run, table)}" for n, run in enumerate(table.runs, start=1)]
    nothing = f"No run folder holds a number of this table: it {_takes(table)}."
    return [*notes, *table.notes, *(runs or [nothing]), *left_out]


def _note(run: MeasuredRun, table: PaperTable) -> str:
    """Return a sentence about a run and how its settings differ from those of the paper."""
    rows = [row for group in table.groups for row in group.rows]
    used = [(row.method or "", cell) for row in rows for cell in row.cells if run in cell.runs]
    seeds = len(run.setting("seeds"))
    phrases = [f"{run.folder}: {run.data}, {seeds} seed{'s'[: seeds - 1]}, recipe {run.recipe}"]
    # A run on other images stands in for those of the first data set.
    data = run.data if run.data in table.data else table.data[0]
    sizes = table.sizes.get(data, {}).items()
    facts = [f"{k} {run.facts[k]} ({size})" for k, size in sizes if run.facts.get(k, size) != size]
    facts += [f"{k} {setting_text(run.facts[k])}" for k in GENERATION_FACTS if run.facts.get(k)]
    phrases += [", ".join(facts)] if facts else []
    evaluation = {k: setting_text(value) for k, value in run.settings.get("evaluation", {}).items()}
    phrases += [
        text.format(**evaluation)
        for kind, text in _WORDS["sources"].items()
        if any(f"/{kind}/" in cell.source for _, cell in used)
    ]
    # The nearest, where the table's rows have several.
    rows = [method for method, _ in used]
    changes = {recipe: differences(run, recipe, rows) for recipe in table.recipes.get(data, ())}
    nearest = min(changes, key=lambda recipe: len(changes[recipe]), default=None)
    if nearest is None:
        phrases.append("no recipe of the paper's setting")
    else:
        other = changes[nearest]
        unlike = f"unlike the paper's recipe {nearest} in {', '.join(other)}"
        phrases.append(unlike if other else f"as the paper's recipe {nearest}")
    return "; ".join(phrases) + "."


def _takes(table: PaperTable) -> str:
    of = f"of `{_COMMANDS[table.experiment]}` " if table.experiment else ""
    augmentation = {None: "", True: " with augmentation", False: " without augmentation"}
    return f"takes runs {of}on {' or '.join(table.data)}{augmentation[table.augmented]}"


def _lines(table: PaperTable, group: Group, write: _Write) -> list[list[str]]:
    """Return the heads, then two lines for each row of a group: the paper's, and ours."""
    numbers = {run.folder: number for number, run in enumerate(table.runs, start=1)}
    columns = range(len(group.heads))
    decimals = [max(row.cells[place].paper.decimals for row in group.rows) for place in columns]
    lines = [[group.title or "Model", *(write(head, None) for head in group.heads)]]
    for row in group.rows:
        places = sorted({numbers[run.folder] for cell in row.cells for run in cell.runs})
        references = f" [{','.join(map(str, places))}]" if places else ""
        measured = (
            write(_measured(cell, n), cell.mark)
            for cell, n in zip(row.cells, decimals, strict=True)
        )
        lines.append([row.label, *(write(_paper(cell), None) for cell in row.cells)])
        lines.append([f"  ours: {row.method or 'no such method'}{references}", *measured])
    return lines


def _bold(text: str, mark: str | None) -> str:
    return text if mark is None or text == MISSING else f"**{text}** {mark}".rstrip()


def _paper(cell: Cell) -> str:
    text = cell.paper.text + ("" if cell.paper.target else "†")
    return text if cell.same is None else f"{text} ({cell.same:z.{cell.paper.decimals}f})"


def _measured(cell: Cell, decimals: int) -> str:
    if cell.ours is None or cell.ours.mean is None:
        return MISSING
    if decimals == 0:
        # A paper's whole seconds may be our milliseconds.
        decimals = max(0, 2 - math.floor(math.log10(abs(cell.ours.mean) or 1.0)))
    text, error = f"{cell.ours.mean:z.{decimals}f}", cell.ours.standard_error
    text += "" if error is None else f"±{error:.{decimals}f}"
    # A distance or a score in other features than Inception's says so.
    kind, names = cell.source.rpartition("/")[2], "/".join(cell.runs[0].facts.get("fd_name", ()))
    if kind in ("fd", "is") and names != "FID":
        text = f"{names.replace('FD', kind.upper())} {text}"
    return text


def draw(table: PaperTable, left_out: list[str]) -> Figure:
    """Draw the text of a table, the paper's lines in grey and ours in black."""
    lines = terminal_text(table, left_out, _LETTERS).split("\n")
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
