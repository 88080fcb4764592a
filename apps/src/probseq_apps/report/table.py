"""The comparison as a table: metrics down, methods across; for the terminal and for Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from probseq_apps.report.summary import Direction, Summary, best_names

# By method, then by metric.
Summaries = Mapping[str, Mapping[str, Summary]]

LEGEND = (
    "mean ± standard error over the seeds. * marks the best mean and those next to it that Welch's "
    "t-test (5%) cannot tell from it; no mark where it tells none apart. — not defined."
)

_METHODS_ACROSS = 5

_LABELS: dict[str, tuple[str, Direction]] = {
    "accuracy": ("accuracy", "higher"),
    "mcc": ("MCC", "higher"),
    "nll": ("NLL", "lower"),
    "ece": ("ECE", "lower"),
    "classwise-ece": ("ECE, classwise", "lower"),
    "mce": ("MCE", "lower"),
    "brier": ("Brier", "lower"),
    "aurc": ("AURC", "lower"),
    "e-aurc": ("E-AURC", "lower"),
    "failure-auroc": ("failure AUROC", "higher"),
    "failure-fpr95": ("failure FPR95", "lower"),
    "mae": ("MAE", "lower"),
    "rmse": ("RMSE", "lower"),
    "coverage-ece": ("coverage error", "lower"),
    "auroc": ("AUROC", "higher"),
    "aupr-out": ("AUPR-out", "higher"),
    "aupr-in": ("AUPR-in", "higher"),
    "fpr95": ("FPR95", "lower"),
}
_SHIFT_TITLES = {"shift": "corrupted", "cifar-c": "CIFAR-C"}
# Of the many numbers under shift and on other data sets, those that go into the table.
_SHIFT_SHOWN = ("accuracy", "nll", "ece")
_OOD_SHOWN = ("auroc", "fpr95")
# The columns of the thesis' Table B.32.
_VARIANCE_SHOWN = ("auroc", "aupr-out")


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        section: heading under which it stands.
        label: name of the metric with an arrow to its good end.
        cells: one for each method.
        marked: for each method, whether it is among the best.
    """

    section: str
    label: str
    cells: list[str]
    marked: list[bool]


def table_lines(summaries: Summaries, methods: Sequence[str]) -> list[Line]:
    """Lines of the table for some of the methods; marks are given among all of them.

    Args:
        summaries: metrics by method.
        methods: those to show.
    """
    lines: list[Line] = []
    for metric in next(iter(summaries.values())):
        shown = _shown(metric)
        if shown is None:
            continue
        section, name = shown
        label, direction = _LABELS[metric.rpartition("/")[2]]
        by_method = {method: found[metric] for method, found in summaries.items()}
        best = best_names(by_method, direction)
        arrow = "↑" if direction == "higher" else "↓"
        cells = [_cell(by_method[method]) for method in methods]
        marked = [method in best for method in methods]
        lines.append(Line(section, f"{name or label} {arrow}", cells, marked))
    # Shift metrics come one severity at a time; the sort is stable and keeps sections together.
    sections = list(dict.fromkeys(line.section for line in lines))
    return sorted(lines, key=lambda line: sections.index(line.section))


def terminal_table(summaries: Summaries, seeds: Mapping[str, int]) -> str:
    """Aligned text table, five methods across at most.

    Args:
        summaries: metrics by method.
        seeds: number of entries of each method.
    """
    return "\n\n".join(_text_block(summaries, seeds, part) for part in _parts(list(summaries)))


def markdown_table(summaries: Summaries, seeds: Mapping[str, int]) -> str:
    """The same as Markdown, one table with all methods."""
    methods = list(summaries)
    head = ["", *(f"{method} (n={seeds[method]})" for method in methods)]
    rows = [head, ["---", *("---:" for _ in methods)]]
    section = None
    for line in table_lines(summaries, methods):
        if line.section != section:
            section = line.section
            rows.append([f"**{section}**", *("" for _ in methods)])
        cells = [
            f"**{cell}** *" if mark else cell
            for cell, mark in zip(line.cells, line.marked, strict=True)
        ]
        rows.append([line.label, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text_block(summaries: Summaries, seeds: Mapping[str, int], methods: Sequence[str]) -> str:
    lines = table_lines(summaries, methods)
    body = [
        [
            line.label,
            *(
                f"{cell} {'*' if mark else ' '}"
                for cell, mark in zip(line.cells, line.marked, strict=True)
            ),
        ]
        for line in lines
    ]
    heads = [
        ["", *(f"{method}  " for method in methods)],
        ["n", *(f"{seeds[m]}  " for m in methods)],
    ]
    widths = [
        max(len(row[column]) for row in (*heads, *body)) for column in range(len(methods) + 1)
    ]
    first = max(widths[0], *(len(line.section) for line in lines)) + 2
    rule = "─" * (first + sum(width + 2 for width in widths[1:]))

    def aligned(row: Sequence[str], indent: str) -> str:
        numbers = (cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True))
        return f"{(indent + row[0]).ljust(first)}{''.join(numbers)}".rstrip()

    text = [*(aligned(head, "") for head in heads), rule]
    section = None
    for line, row in zip(lines, body, strict=True):
        if line.section != section:
            section = line.section
            text.append(section)
        text.append(aligned(row, "  "))
    return "\n".join(text)


def _parts(methods: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(methods), _METHODS_ACROSS):
        yield methods[start : start + _METHODS_ACROSS]


def _shown(metric: str) -> tuple[str, str | None] | None:
    """Section and own label of a metric; None for those that are in `report.json` alone."""
    parts = metric.split("/")
    match parts:
        case [("shift" | "cifar-c") as kind, where, name] if where.startswith("severity-"):
            if name in _SHIFT_SHOWN:
                severity = where.removeprefix("severity-")
                return f"{_SHIFT_TITLES[kind]}, severity {severity}", None
        case ["ood", *name, detector, metric_name] if metric_name in (
            _VARIANCE_SHOWN if detector == "variance" else _OOD_SHOWN
        ):
            label = _LABELS[metric_name][0]
            # A folder's path has slashes of its own.
            return f"test set against {'/'.join(name)}", f"{label}, {detector}"
        case [name, metric_name] if metric_name in _LABELS:
            return name, None
        case _:
            pass
    return None


def _cell(summary: Summary) -> str:
    if summary.mean is None:
        return "—"
    if summary.standard_error is None:
        return f"{summary.mean:.4f}"
    return f"{summary.mean:.4f}±{summary.standard_error:.4f}"
