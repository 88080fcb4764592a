"""Tables with methods down and numbers across, for comparisons of many methods."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from probseq_apps.report.columns import aligned_blocks
from probseq_apps.report.labels import ARROWS, Direction
from probseq_apps.report.summary import Summary, best_names, summarise


class Grid(NamedTuple):
    """A table.

    Attributes:
        title: what stands above it.
        heads: labels of the columns.
        directions: good end of each column.
        rows: for each method, a number for each column.
    """

    title: str
    heads: tuple[str, ...]
    directions: tuple[Direction, ...]
    rows: Mapping[str, tuple[Summary, ...]]


def mean_of(summaries: Iterable[Summary]) -> Summary:
    """Summary of the mean of several metrics, taken for each seed first.

    Args:
        summaries: over the same seeds.
    """
    columns = zip(*(summary.values for summary in summaries), strict=True)
    return summarise([_mean(values) for values in columns])


def text_grid(grid: Grid, seeds: Mapping[str, int], width: int) -> str:
    """The table for the terminal; columns that don't fit go below.

    Args:
        grid: the table.
        seeds: number of entries of each method.
        width: letters of a line.
    """
    heads = [grid.title, "n", *(f"{head}  " for head in heads_of(grid))]
    rows = [
        [method, str(seeds[method]), *(f"{c} {'*' if m else ' '}" for c, m in cells)]
        for method, cells in marked_cells(grid).items()
    ]
    return aligned_blocks(heads, rows, width)


def markdown_grid(grid: Grid, seeds: Mapping[str, int]) -> str:
    """The same as Markdown.

    Args:
        grid: the table.
        seeds: number of entries of each method.
    """
    rows = [[grid.title, *heads_of(grid)], ["---", *("---:" for _ in grid.heads)]]
    for method, cells in marked_cells(grid).items():
        texts = [f"**{text}** *" if marked else text for text, marked in cells]
        rows.append([f"{method} (n={seeds[method]})", *texts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell_text(summary: Summary) -> str:
    """Mean and standard error of a metric, as tables show them."""
    if summary.mean is None:
        return "—"
    if summary.standard_error is None:
        return f"{summary.mean:.4f}"
    return f"{summary.mean:.4f}±{summary.standard_error:.4f}"


def heads_of(grid: Grid) -> list[str]:
    """Labels of the columns, with an arrow to the good end."""
    return [
        f"{head} {ARROWS[direction]}"
        for head, direction in zip(grid.heads, grid.directions, strict=True)
    ]


def marked_cells(grid: Grid) -> dict[str, list[tuple[str, bool]]]:
    """By method, the cells as text and whether they are among the best of their column."""
    best = [
        best_names({method: row[place] for method, row in grid.rows.items()}, direction)
        for place, direction in enumerate(grid.directions)
    ]
    return {
        method: [(cell_text(cell), method in best[place]) for place, cell in enumerate(row)]
        for method, row in grid.rows.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return fmean(defined) if len(defined) == len(values) else None
