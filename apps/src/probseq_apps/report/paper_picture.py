"""A comparison with a paper's table as a picture."""

import textwrap
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probseq_apps.report.compare import ComparedGroup, Comparison
from probseq_apps.report.paper_text import PaperLine, footnotes, group_lines

# Inches: DejaVu Sans at 9 points takes a little less for an average letter.
_LETTER, _LINE, _GAP, _MARGIN = 0.078, 0.21, 0.22, 0.3
_TITLE_LETTER = 0.105
_SIZE, _DPI = 9.0, 150
# Okabe and Ito's green and vermilion.
_MARKS = {"▲": "#009E73", "▼": "#D55E00", "": "#000000"}
_PAPER, _SHADE, _RULE = "#6A6A6A", "#F2F5F8", "#404040"
_NOTE_WIDTH = 7.0


class _Block(NamedTuple):
    group: ComparedGroup
    lines: list[PaperLine]
    widths: list[float]


def draw(comparison: Comparison, left_out: list[str]) -> Figure:
    """Draw the table: the paper's numbers in grey, ours below in black or the colour of the mark.

    Args:
        comparison: the table.
        left_out: notes on reports that could not be used.
    """
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
