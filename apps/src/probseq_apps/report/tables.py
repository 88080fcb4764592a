"""Tables of means over seeds, the best of each column marked, as text and as Markdown.

Importing this module loads no torch; marks are of `probseq.summary.best_names`.

Example:
    >>> from probseq.summary import summarise
    >>> from probseq_apps.report.tables import Measure, summary_table
    >>> nll = {"a": summarise([0.10, 0.11, 0.12]), "b": summarise([0.50, 0.51, 0.52])}
    >>> table = summary_table("test", {Measure.of("nll"): nll})
    >>> print(table.markdown())
    | test | n | NLL ↓ |
    | --- | ---: | ---: |
    | a | 3 | **0.1100±0.0058** * |
    | b | 3 | 0.5100±0.0058 |
"""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from probseq.summary import LABELS, Direction, Summary, best_names

# Makes a cell of a number.
Writer = Callable[[Summary], str]

DASH = "—"
"""The cell of a number that is missing."""
_GAP, _ERRORS = 2, "mean ± standard error; "
KEY = f"{_ERRORS}* best mean, and those not told apart from it (95%), unless all are or at chance"
# Name and number of entries: the columns of a table without marks.
_FACTS = 2


class Measure(NamedTuple):
    """A number over the seeds: a column of a table, or what a claim is about."""

    label: str  # what it is called
    direction: Direction | None = None  # its good end; None for a number without one
    path: tuple[str, ...] = ()  # keys that lead to it in a result
    chance: float | None = None  # what guesses reach, where that is known

    @property
    def head(self) -> str:
        """Label with an arrow to the good end."""
        arrows = {"higher": " ↑", "lower": " ↓", None: ""}
        return f"{self.label}{arrows[self.direction]}"

    def beats_chance(self, summary: Summary) -> bool:
        """Return whether a mean is better than what guesses reach."""
        if summary.mean is None or self.chance is None:
            return self.chance is None
        return (summary.mean > self.chance) == (self.direction == "higher")

    @classmethod
    def of(cls, metric: str) -> "Measure":
        """Return the measure of a metric by its own name, such as `nll`."""
        return cls(*LABELS[metric])


class Table(NamedTuple):
    """Cells of a table; the first column names the rows."""

    heads: list[str]
    rows: list[list[str]]  # cells, each row as long as the heads
    best: frozenset[tuple[int, int]] | None = None  # rows and columns of the cells with a mark
    about: str = ""  # of the last column, which the key does not tell of

    @property
    def key(self) -> str:
        """The meaning of its signs; empty for a table without any, as of one seed."""
        errors = any("±" in cell for row in self.rows for cell in row[: len(self.heads) - 1])
        key = KEY if errors else KEY.removeprefix(_ERRORS)
        signs = self.best is not None and (errors or self.best)
        return "; ".join(filter(None, (key if signs else "", self.about)))

    def screen(self, width: int) -> str:
        """Return aligned lines; columns that don't fit `width` are named below.

        The numbers of entries are left out where they are equal.
        """
        lines, hidden = [self.heads, *self.rows], list[str]()
        if self.best is not None:
            heads = [*self.heads[:_FACTS], *(f"{head}  " for head in self.heads[_FACTS:])]
            lines = [heads, *self.marked("{} *", "{}  ")]
            if len({row[1] for row in self.rows}) == 1:
                lines = [[name, *cells] for name, _, *cells in lines]
        while "─" * (width + 1) in (text := aligned(lines)) and len(lines[0]) > _FACTS:
            hidden.insert(0, lines[0][-1].strip())
            lines = [line[:-1] for line in lines]
        # What is told of the last column alone goes with it.
        key = textwrap.fill((self._replace(about="") if hidden else self).key, width)
        named = f"not shown: {', '.join(hidden)}" if hidden else ""
        below = "\n".join(filter(None, (key, textwrap.shorten(named, width, placeholder=" …"))))
        return f"{text}\n\n{below}".rstrip()

    def markdown(self) -> str:
        """Return a Markdown table, cells with a mark in bold."""
        return markdown_table([self.heads, *self.marked("**{}** *", "{}")])

    def csv(self) -> str:
        """Return comma-separated values; a column of means with errors is two."""
        split = [any("±" in row[k] for row in self.rows) for k in range(len(self.heads))]
        lines = [[head.rstrip(" ↑↓") for head in self.heads], *self.rows]
        text = io.StringIO()
        for number, line in enumerate(lines):
            cells: list[str] = []
            for cell, two in zip(line, split, strict=True):
                mean, _, error = cell.partition("±")
                errors = [error.strip() if number else f"{cell} error"] * two
                cells += [mean.strip().replace(DASH, ""), *errors]
            csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()

    def latex(self) -> str:
        """Return a tabular of booktabs, cells with a mark in bold."""
        lines = [[*map(_tex, cells)] for cells in (self.heads, *self.rows)]
        for row, column in self.best or ():
            lines[row + 1][column] = rf"\textbf{{{lines[row + 1][column]}}}"
        head, *body = (" & ".join(cells) + r" \\" for cells in lines)
        top = [rf"\begin{{tabular}}{{l{'r' * (len(self.heads) - 1)}}}", r"\toprule", head]
        return "\n".join([*top, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])

    def marked(self, best: str, other: str) -> list[list[str]]:
        """Return the rows, cells of numbers in the form of those with a mark or without."""
        rows = [list(cells) for cells in self.rows]
        for row, cells in enumerate(rows):
            for column in range(_FACTS, len(cells)):
                form = best if (row, column) in (self.best or ()) else other
                cells[column] = form.format(cells[column])
        return rows


def _tex(text: str) -> str:
    """Return a cell for LaTeX."""
    signs = {sign: rf"\{sign}" for sign in "&%$#_{}"} | {
        "±": r" $\pm$ ",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "Δ": r"$\Delta$",
        DASH: "--",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    text = " ".join(text.translate(str.maketrans(signs)).split())
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a number's sign is no hyphen


def summary_table(
    title: str,
    columns: Mapping[Measure, Mapping[str, Summary]],
    decimals: int = 4,
    *,
    errors: bool = True,
) -> Table:
    """Return a table of means with standard errors or without, the best of each column marked.

    A column has a summary a row, or a dash; the largest number of entries stands behind the name.
    """
    missing, names = Summary((), None, None), dict.fromkeys(n for c in columns.values() for n in c)
    rows = {name: [column.get(name, missing) for column in columns.values()] for name in names}
    best = {
        (row, number + _FACTS)
        for number, (measure, column) in enumerate(columns.items())
        if measure.direction is not None
        for row, name in enumerate(rows)
        if measure.beats_chance(rows[name][number])
        and name in best_names(column, measure.direction)
    }
    write = with_error(decimals) if errors else plain(decimals)
    cells = [
        [name, str(max(len(each.values) for each in summaries)), *map(write, summaries)]
        for name, summaries in rows.items()
    ]
    return Table([title, "n", *(measure.head for measure in columns)], cells, frozenset(best))


def with_error(digits: int) -> Writer:
    """Return a function that writes a mean ± its standard error."""
    return lambda summary: _number(summary.mean, summary.standard_error, digits)


def plain(digits: int) -> Writer:
    """Return a function that writes a mean alone."""
    return lambda summary: _number(summary.mean, None, digits)


def percent(summary: Summary) -> str:
    """Return a mean of shares in percent."""
    return DASH if summary.mean is None else f"{summary.mean:.0%}"


def fact_text(value: object) -> str:
    """Return a value that all seeds share as text; a dash for None."""
    if value is None:
        return DASH
    return f"{value:,}" if isinstance(value, int) else str(value)


def decimals_of(means: Sequence[float | None]) -> int:
    """Return the decimals that suit the largest of some means."""
    largest = max((abs(mean) for mean in means if mean is not None), default=0.0)
    return 4 - sum(largest >= bound for bound in (1.0, 10.0, 1000.0))


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    heads, *rows = lines
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align a table: first column to the left, the others to the right, a rule below the head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rows = (
        "".join(
            cell.rjust(_GAP + width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join([head, "─" * max(map(len, [head, *rows])), *rows])


def _number(mean: float | None, around: float | None, digits: int) -> str:
    if mean is None:
        return DASH
    return f"{mean:z,.{digits}f}{'' if around is None else f'±{around:.{digits}f}'}"
