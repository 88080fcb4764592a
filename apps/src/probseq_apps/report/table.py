"""The comparison as a table, for the terminal and for Markdown.

A few methods stand side by side with the metrics below each other; many methods stand below each
other with the metrics side by side.
"""

from collections.abc import Mapping, Sequence

from probseq_apps.report.grids import Grid, heads_of, markdown_grid, marked_cells, text_grid
from probseq_apps.report.labels import LABELS, Direction
from probseq_apps.report.shift_grids import SHIFT_TITLES, mean_over_severities, severities_of
from probseq_apps.report.summary import Summary

# By method, then by metric.
Summaries = Mapping[str, Mapping[str, Summary]]

LEGEND = (
    "mean ± standard error over the seeds. * marks the best mean and those next to it that Welch's "
    "t-test (5%) cannot tell from it; no mark where it tells none apart. — not defined."
)

_METHODS_ACROSS = 5
# Five metrics side by side.
_WIDTH = 120
_AGAINST = "test set against"

# Of the many numbers under shift and on other data sets, those that go into the table.
_SHIFT_SHOWN = ("accuracy", "nll", "ece")
_OOD_SHOWN = ("auroc", "fpr95")
_OOD_SHOWN_OF_MANY = ("auroc",)
# The columns of the thesis' Table B.32.
_VARIANCE_SHOWN = ("auroc", "aupr-out")


def terminal_table(summaries: Summaries, seeds: Mapping[str, int], width: int = _WIDTH) -> str:
    """Aligned text table.

    With more than five methods, numbers under shift are means over the severities, and detection
    on other data is told by its AUROC.

    Args:
        summaries: metrics by method.
        seeds: number of entries of each method.
        width: letters of a line, for many methods.
    """
    grids = _grids(summaries)
    if len(summaries) <= _METHODS_ACROSS:
        return _text_across(grids, list(summaries), seeds)
    return "\n\n".join(text_grid(grid, seeds, width) for grid in grids)


def markdown_table(summaries: Summaries, seeds: Mapping[str, int]) -> str:
    """The same as Markdown.

    Args:
        summaries: metrics by method.
        seeds: number of entries of each method.
    """
    grids = _grids(summaries)
    if len(summaries) > _METHODS_ACROSS:
        return "\n\n".join(markdown_grid(grid, seeds) for grid in grids)
    methods = list(summaries)
    rows = [["", *(f"{method} (n={seeds[method]})" for method in methods)]]
    rows.append(["---", *("---:" for _ in methods)])
    for grid in grids:
        rows.append([f"**{grid.title}**", *("" for _ in methods)])
        for label, cells in _lines(grid):
            rows.append([label, *(f"**{cell}** *" if mark else cell for cell, mark in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _grids(summaries: Summaries) -> list[Grid]:
    """One table for each section: test sets, then shift, then other data."""
    few = len(summaries) <= _METHODS_ACROSS
    columns: dict[str, dict[str, str]] = {}
    for metric in next(iter(summaries.values())):
        shown = _shown(metric, few=few)
        if shown is not None:
            section, label = shown
            columns.setdefault(section, {})[metric] = label
    grids = [_section(summaries, title, found) for title, found in columns.items()]
    if few:
        return grids
    labelled = [grid for grid in grids if not grid.title.startswith(_AGAINST)]
    against = [grid for grid in grids if grid.title.startswith(_AGAINST)]
    return [*labelled, *_shift_means(summaries), *against]


def _section(summaries: Summaries, title: str, columns: Mapping[str, str]) -> Grid:
    directions: tuple[Direction, ...] = tuple(
        LABELS[metric.rpartition("/")[2]][1] for metric in columns
    )
    rows = {
        method: tuple(found[metric] for metric in columns) for method, found in summaries.items()
    }
    return Grid(title, tuple(columns.values()), directions, rows)


def _shift_means(summaries: Summaries) -> list[Grid]:
    grids: list[Grid] = []
    for kind, title in SHIFT_TITLES.items():
        if not severities_of(summaries, kind):
            continue
        rows = {
            method: tuple(
                mean_over_severities(metrics, kind, "severity", name) for name in _SHIFT_SHOWN
            )
            for method, metrics in summaries.items()
        }
        labels = [LABELS[name] for name in _SHIFT_SHOWN]
        heads = tuple(label for label, _ in labels)
        directions: tuple[Direction, ...] = tuple(direction for _, direction in labels)
        grids.append(Grid(f"{title}, all severities", heads, directions, rows))
    return grids


def _shown(metric: str, *, few: bool) -> tuple[str, str] | None:
    """Section and label of a metric; None for those that are in `report.json` alone."""
    match metric.split("/"):
        case [("shift" | "cifar-c") as kind, where, name]:
            if few and where.startswith("severity-") and name in _SHIFT_SHOWN:
                severity = where.removeprefix("severity-")
                return f"{SHIFT_TITLES[kind]}, severity {severity}", LABELS[name][0]
        case ["ood", *name, detector, own] if own in _detection(detector, few=few):
            # A folder's path has slashes of its own.
            return f"{_AGAINST} {'/'.join(name)}", f"{LABELS[own][0]}, {detector}"
        case [name, own] if own in LABELS:
            return name, LABELS[own][0]
        case _:
            pass
    return None


def _detection(detector: str, *, few: bool) -> tuple[str, ...]:
    if detector == "variance":
        return _VARIANCE_SHOWN
    return _OOD_SHOWN if few else _OOD_SHOWN_OF_MANY


def _lines(grid: Grid) -> list[tuple[str, list[tuple[str, bool]]]]:
    """A table on its side: label of each column, and its cells."""
    cells = marked_cells(grid)
    return [
        (head, [row[place] for row in cells.values()]) for place, head in enumerate(heads_of(grid))
    ]


def _text_across(grids: Sequence[Grid], methods: Sequence[str], seeds: Mapping[str, int]) -> str:
    body = [
        (grid.title, [label, *(f"{cell} {'*' if mark else ' '}" for cell, mark in cells)])
        for grid in grids
        for label, cells in _lines(grid)
    ]
    heads = [
        ["", *(f"{method}  " for method in methods)],
        ["n", *(f"{seeds[method]}  " for method in methods)],
    ]
    rows = [*heads, *(row for _, row in body)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(methods) + 1)]
    first = max(widths[0], *(len(grid.title) for grid in grids)) + 2

    def aligned(row: Sequence[str], indent: str) -> str:
        numbers = (cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True))
        return f"{(indent + row[0]).ljust(first)}{''.join(numbers)}".rstrip()

    rule = "─" * (first + sum(width + 2 for width in widths[1:]))
    text = [*(aligned(head, "") for head in heads), rule]
    section = None
    for title, row in body:
        if title != section:
            section = title
            text.append(title)
        text.append(aligned(row, "  "))
    return "\n".join(text)
